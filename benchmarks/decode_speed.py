"""Benchmark: decoding speed of one MarianMT model with ours, CTranslate2 and HF generate.

    python benchmarks/decode_speed.py --model=DIR --input=FILE [--rounds=2] [--beam_size=4]
        [--lines=0] [--length=0] [--shape=wide] [--variants="ours;CTranslate2"]
DIR is a MarianMT directory; --shape measures a larger model that is made from it
(benchmarks/parts/larger_marian.py). Prints a Markdown table of sentences and output tokens per
second, warm; recorded in benchmarks/decode_speed.md. Variants alternate; each measurement is a
process of its own. All use the penalty length^1. The limit of ours and HF is the source length + 50
unless the variant sets another one; that of CTranslate2 is 150, which does not slow it down.
--length forces the number of tokens of every output. The score is the mean of log-probability /
length of the outputs, computed by our model in float32.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.parts.larger_marian import SHAPES, write_larger
from benchmarks.parts.variants import alternating, chosen, measured, peak_memory
from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.files.lines import text_lines

# Variant → the function that makes it, and its arguments.
VARIANTS = {
    "ours: exact": ("ours", {}),
    "ours: exact, limit S + 12": ("ours", {"max_extra_length": 12}),
    "ours: horizon 1, limit S + 12": ("ours", {"max_extra_length": 12, "horizon": 1}),
    "ours: horizon 1, limit S + 8": ("ours", {"max_extra_length": 8, "horizon": 1}),
    "ours, mixed: exact, limit S + 12": ("ours", {"max_extra_length": 12, "dtype": "mixed"}),
    "ours, mixed: exact, limit S + 8": ("ours", {"max_extra_length": 8, "dtype": "mixed"}),
    "ours, mixed: horizon 1, limit S + 12": (
        "ours",
        {"max_extra_length": 12, "horizon": 1, "dtype": "mixed"},
    ),
    "CTranslate2 float32: 2 translators, batch 32": ("ctranslate2", {"batch": 32, "inter": 2}),
    "CTranslate2 float32: 2 translators, batch 64": ("ctranslate2", {"batch": 64, "inter": 2}),
    "CTranslate2 float32: 2 translators, batch 128": ("ctranslate2", {"batch": 128, "inter": 2}),
    "CTranslate2 float32: 2 translators, batch 256": ("ctranslate2", {"batch": 256, "inter": 2}),
    "CTranslate2 int8: 2 translators, batch 64": (
        "ctranslate2",
        {"batch": 64, "inter": 2, "kind": "int8"},
    ),
    "HF generate: batch 32": ("hf", {"batch": 32}),
    "ours: batch 1": ("ours", {"batch_size": 1}),
    "ours, horizon 1, limit S + 12: batch 1": (
        "ours",
        {"batch_size": 1, "max_extra_length": 12, "horizon": 1},
    ),
    "ours, mixed: batch 1": ("ours", {"batch_size": 1, "dtype": "mixed"}),
    "ours, mixed, limit S + 12: batch 1": (
        "ours",
        {"batch_size": 1, "dtype": "mixed", "max_extra_length": 12},
    ),
    "CTranslate2 float32: batch 1": ("ctranslate2", {"batch": 1}),
    "CTranslate2 float32, one thread: batch 1": ("ctranslate2", {"batch": 1, "threads": 1}),
    "HF generate: batch 1": ("hf", {"batch": 1}),
}
ONE_BY_ONE = "batch 1"  # at the end of a name: a call for each sentence
EXTRA = 50


def our_translator(f, **options):
    """A Translator of a MarianMT directory."""
    from seq2seq.runtime.devices import prepare_jax

    prepare_jax("off", 1, decoding_only=True)
    from seq2seq.config.tree import DecodingConfig
    from seq2seq.decoding.translator import Translator
    from seq2seq.pretrained.marian import load_marian, marian_config
    from seq2seq.pretrained.marian_files import load_marian_tokenizers

    config, _ = marian_config(Path(f.model))
    options = {
        "beam_size": f.beam_size,
        "alpha": 1.0,
        "power_penalty": True,
        "max_extra_length": EXTRA,
    } | options
    if f.length:
        options |= {"min_length": f.length, "max_length": f.length, "max_extra_length": f.length}
    translator = Translator(
        [config], load_marian_tokenizers(Path(f.model)), DecodingConfig(**options)
    )
    translator.use(load_marian(Path(f.model), config))
    return translator


def ours(f, **options):
    """A function that translates lines with this project."""
    return our_translator(f, **options).translate


def ctranslate2(f, batch: int, inter: int = 1, threads: int = 0, kind: str = "float32"):
    """A function that translates lines with `inter` translators of CTranslate2, which read the
    model that `convert_model` wrote. They share the cores if the number of threads of a translator
    is 0."""
    import ctranslate2
    from sentencepiece import SentencePieceProcessor

    threads = threads or max(1, os.cpu_count() // inter)
    translator = ctranslate2.Translator(
        f.converted, compute_type=kind, inter_threads=inter, intra_threads=threads
    )
    pieces = SentencePieceProcessor(str(Path(f.model) / "source.spm"))
    back = SentencePieceProcessor(str(Path(f.model) / "target.spm"))

    def run(lines: list[str]):
        tokens = [[*line, "</s>"] for line in pieces.encode(lines, out_type=str)]
        results = translator.translate_batch(
            tokens,
            beam_size=f.beam_size,
            max_batch_size=batch,
            length_penalty=1.0,
            max_decoding_length=f.length or EXTRA + 100,
            min_decoding_length=f.length or 1,
        )
        return [back.decode_pieces(result.hypotheses[0]) for result in results]

    return run


def convert_model(model: str, directory: str) -> None:
    """Write the model for CTranslate2, in a process of its own: this needs PyTorch and
    transformers, whose memory is not that of CTranslate2. If it fails, there is none to measure."""
    program = (
        "import sys; from ctranslate2.converters import TransformersConverter as Converter; "
        "Converter(sys.argv[1]).convert(sys.argv[2], force=True)"
    )
    subprocess.run([sys.executable, "-c", program, model, directory], check=False)


def hf(f, batch: int):
    """A function that translates lines with transformers' generate, sorted by length."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    torch.set_num_threads(os.cpu_count())
    tokenizer = MarianTokenizer.from_pretrained(f.model)
    network = MarianMTModel.from_pretrained(f.model, dtype="float32").eval()

    def run(lines: list[str]):
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        texts = [""] * len(lines)
        with torch.no_grad():
            for at in range(0, len(order), batch):
                numbers = order[at : at + batch]
                inputs = tokenizer([lines[i] for i in numbers], return_tensors="pt", padding=True)
                # max_length and min_length would count the token that starts the decoder.
                ids = network.generate(
                    **inputs,
                    num_beams=f.beam_size,
                    max_new_tokens=f.length or inputs["input_ids"].shape[1] + EXTRA,
                    min_new_tokens=f.length or None,
                )
                outputs = tokenizer.batch_decode(ids, skip_special_tokens=True)
                for i, output in zip(numbers, outputs, strict=True):
                    texts[i] = output
        return texts

    return run


def input_lines(f) -> list[str]:
    """The lines of --input, at most --lines."""
    return list(islice(text_lines(f.input), f.lines or None))


def measure(f) -> dict:
    """Cold and warm seconds of one variant, its translations, and peak memory in MB."""
    started = time.perf_counter()
    lines = input_lines(f)
    program, arguments = VARIANTS[f.variant]
    translate = {"ours": ours, "ctranslate2": ctranslate2, "hf": hf}[program](f, **arguments)
    parts = [[line] for line in lines] if f.variant.endswith(ONE_BY_ONE) else [lines]
    for part in parts:
        translate(part)
    cold = time.perf_counter() - started
    started = time.perf_counter()
    texts = [text for part in parts for text in translate(part)]
    warm = time.perf_counter() - started
    memory = peak_memory() / 1e6
    return {"cold": cold, "warm": warm, "texts": texts, "memory": memory}


def scores(f, texts: list[str], lines: list[str]) -> tuple[float, int]:
    """The mean of log p / length of the outputs under our model, and their number of tokens."""
    pairs = zip(lines, texts, strict=True)
    targets = [scored.hypotheses[0] for scored in our_translator(f).score(pairs)]
    mean = statistics.mean(target.score for target in targets)
    return mean, sum(target.length for target in targets)


def measured_in_process(f, converted: str, name: str) -> dict | None:
    """What `measure` returns for a variant in a new process."""
    options = ("model", "input", "beam_size", "lines", "length")
    values = [f"--{option}={f[option].value}" for option in options]
    return measured(__file__, name, [*values, f"--converted={converted}"])


def print_table(f, results: dict[str, list[dict]]) -> None:
    """Print a row for each variant that was measured."""
    lines = input_lines(f)
    print("| beam", f.beam_size, "| sentences/s (range) | output tokens/s | mean score | MB |")
    print("|---|---|---|---|---|")
    for name, measurements in results.items():
        if not measurements:
            continue
        rates = sorted(len(lines) / measurement["warm"] for measurement in measurements)
        score, tokens = scores(f, measurements[0]["texts"], lines)
        middle = statistics.median(rates)
        print(
            f"| {name} | {middle:,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f}) | "
            f"{tokens / len(lines) * middle:,.0f} | {score:.4f} | "
            f"{measurements[0]['memory']:,.0f} |"
        )


def main() -> None:
    f = flags.FLAGS
    if f.variant:
        print(json.dumps(measure(f)))
        return
    names = chosen(VARIANTS, f.variants)
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as larger:
        if f.shape:
            write_larger(f.shape, Path(f.model), Path(larger))
            f.model = larger
        if any(VARIANTS[name][0] == "ctranslate2" for name in names):
            convert_model(f.model, directory)
        results = alternating(names, f.rounds, partial(measured_in_process, f, directory))
        print_table(f, results)


def define_flags() -> None:
    define_path("model", None, "A MarianMT directory.", required=True)
    define_path("input", None, "A file with one sentence per line.", required=True)
    flags.DEFINE_integer("beam_size", 4, "1 is greedy.")
    flags.DEFINE_integer("lines", 0, "Number of lines to translate; 0: all.")
    flags.DEFINE_integer("length", 0, "Forced number of tokens of every output; 0: not forced.")
    flags.DEFINE_enum("shape", "", ["", *SHAPES], "A larger model made from --model.")
    flags.DEFINE_integer("rounds", 2, "Measurements of each variant, alternating.", 1)
    flags.DEFINE_string(
        "variants", "", "Only variants whose name contains one of these strings, separated by ;."
    )
    flags.DEFINE_string("variant", "", "Measure this variant in this process (used internally).")
    define_path("converted", "", "The model for CTranslate2 (used internally).")


if __name__ == "__main__":
    run_command(define_flags, main)
