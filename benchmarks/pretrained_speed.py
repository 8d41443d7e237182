"""Benchmark: loading and decoding models of published shapes: ours, CTranslate2, HF generate.

    python benchmarks/pretrained_speed.py --shape=t5-small [--rounds=2] [--beam_size=4]
        [--length=32] [--variants="ours;CTranslate2"]
The weights are random, so the lengths of the outputs are forced. Sources are 24 random token ids.
Prints a Markdown table: seconds to load the directory from a warm disk cache, sentences per second
of a second call, and the peak memory of each process. Each measurement is a process of its own, of
which the first of ours compiles and the others take the program from the cache, as with decode.py;
variants alternate. Recorded in benchmarks/pretrained_speed.md.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.parts.variants import alternating, chosen, measured, peak_memory
from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path


def t5_fields(width: int, inner: int, layers: int, heads: int, **fields) -> dict:
    sizes = dict(d_model=width, d_ff=inner, num_layers=layers, num_heads=heads, d_kv=64)
    return dict(vocab_size=32128, decoder_start_token_id=0) | sizes | fields


def bart_fields(width: int, inner: int, layers: int, heads: int, **fields) -> dict:
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": layers for side in sides} | {"d_model": width}
    sizes |= {f"{side}_ffn_dim": inner for side in sides}
    sizes |= {f"{side}_attention_heads": heads for side in sides}
    return sizes | dict(max_position_embeddings=1024) | fields


# Shape → the class of transformers, the fields of its config, and the sentences of a call. These
# fill the batches of all variants on two cores.
GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
NLLB = dict(vocab_size=256206, scale_embedding=True, activation_function="relu")
SHAPES = {
    "t5-small": ("T5", t5_fields(512, 2048, 6, 8), 256),
    "flan-t5-base": ("T5", t5_fields(768, 2048, 12, 12, **GATED), 128),
    "bart-base": ("Bart", bart_fields(768, 3072, 6, 12, vocab_size=50265), 128),
    "nllb-600m": ("M2M100", bart_fields(1024, 4096, 12, 16, **NLLB), 128),
}
VARIANTS = {
    "ours, mixed": ("ours", {"dtype": "mixed"}),
    "ours, float32": ("ours", {"dtype": "float32"}),
    "CTranslate2 float32: 2 translators, batch 32": ("ctranslate2", {"batch": 32}),
    "HF generate: batch 32": ("hf", {"batch": 32}),
}
CONVERTED = "ctranslate2"  # folder of the converted model
CACHE = "compiled"  # folder of the compilation cache
SOURCE_LENGTH, FIRST = 24, 5  # FIRST: the smallest id that is not special
Translate = Callable[[list[list[int]]], int]  # the number of translations of sources


def write_random(name: str, directory: Path) -> None:
    """Write a directory of transformers with random weights."""
    import torch
    import transformers

    prefix, fields, _ = SHAPES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**fields)
    getattr(transformers, f"{prefix}ForConditionalGeneration")(config).save_pretrained(directory)
    path = directory / "config.json"
    content = json.loads(path.read_text()) | {"normalize_before": False}  # CTranslate2 reads it
    path.write_text(json.dumps(content))


def ours(directory: Path, beam_size: int, length: int, dtype: str) -> Translate:
    """A function that translates with the engine of decode.py; without a tokenizer."""
    from seq2seq.runtime.devices import prepare_jax

    prepare_jax(str(directory / CACHE), 1, decoding_only=True)
    from seq2seq.config.tree import DecodingConfig
    from seq2seq.decoding.engine.engine import Engine
    from seq2seq.decoding.results import Source
    from seq2seq.pretrained.models import TRANSFORMERS_FAMILIES
    from seq2seq.pretrained.transformers_family import (
        load_pretrained,
        model_of,
        model_type,
        read_fields,
    )
    from seq2seq.pretrained.weight_files import WeightFiles

    row = next(row for row in TRANSFORMERS_FAMILIES if row.model_type == model_type(directory))
    names = WeightFiles(directory, "AutoModelForSeq2SeqLM").shapes
    config = model_of(row, read_fields(row, directory), names)
    forced = dict(min_length=length, max_length=length, max_extra_length=length)
    options = DecodingConfig(
        beam_size=beam_size, alpha=1.0, power_penalty=True, dtype=dtype, **forced
    )
    engine = Engine([config], options)
    engine.use(load_pretrained(row, directory))

    def run(sources: list[list[int]]) -> int:
        window = [Source(number, ids) for number, ids in enumerate(sources)]
        return sum(len(results) for results in engine.search([window]))

    return run


class Vocabulary:
    """What the converter of CTranslate2 asks of a tokenizer."""

    bos_token = pad_token = "t0"  # noqa: S105 – a token of a vocabulary
    eos_token, unk_token = "</s>", "<unk>"
    special_tokens_map: dict[str, list[str]] = {}
    num_madeup_words, unk_token_id = 0, 3

    def __init__(self, size: int, end: int):
        self.tokens = [f"t{i}" for i in range(size)]
        self.tokens[end], self.tokens[self.unk_token_id] = self.eos_token, self.unk_token

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.tokens[number]


def vocabulary_of(directory: Path) -> Vocabulary:
    """A vocabulary of made-up tokens for the model of a directory."""
    config = json.loads((directory / "config.json").read_text())
    return Vocabulary(config["vocab_size"], config["eos_token_id"])


def convert(directory: Path) -> None:
    """Write the model of CTranslate2. Its converter needs torch."""
    from ctranslate2.converters import TransformersConverter

    converter = TransformersConverter(str(directory))
    converter.load_tokenizer = lambda *_, **__: vocabulary_of(directory)
    converter.convert(str(directory / CONVERTED))


def ctranslate2(directory: Path, beam_size: int, length: int, batch: int) -> Translate:
    """A function that translates with two translators of CTranslate2, which share the model."""
    import ctranslate2

    vocabulary = vocabulary_of(directory)
    converted = directory / CONVERTED
    translator = ctranslate2.Translator(
        str(converted), compute_type="float32", inter_threads=2, intra_threads=os.cpu_count() // 2
    )

    def run(sources: list[list[int]]) -> int:
        lines = [[*map(vocabulary.convert_ids_to_tokens, ids), "</s>"] for ids in sources]
        forced = dict(min_decoding_length=length, max_decoding_length=length)
        return len(
            translator.translate_batch(lines, beam_size=beam_size, max_batch_size=batch, **forced)
        )

    return run


def hf(directory: Path, beam_size: int, length: int, batch: int) -> Translate:
    """A function that translates with transformers' generate."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(os.cpu_count())
    network = AutoModelForSeq2SeqLM.from_pretrained(directory, dtype="float32").eval()
    end = network.config.eos_token_id

    def run(sources: list[list[int]]) -> int:
        ids = torch.tensor([[*source, end] for source in sources])
        forced = dict(min_new_tokens=length, max_new_tokens=length, num_beams=beam_size)
        with torch.no_grad():
            return sum(len(network.generate(input_ids=part, **forced)) for part in ids.split(batch))

    return run


def measure(f) -> dict:
    """Seconds to load and of a second call, and peak memory in MB, of one variant."""
    directory = Path(f.directory)
    for path in directory.glob("*.safetensors"):
        path.read_bytes()  # into the disk cache
    program, arguments = VARIANTS[f.variant]
    vocabulary, count = SHAPES[f.shape][1].get("vocab_size"), SHAPES[f.shape][2]
    sources = np.random.default_rng(0).integers(FIRST, vocabulary, (count, SOURCE_LENGTH - 1))
    programs = {"ours": ours, "ctranslate2": ctranslate2, "hf": hf}
    started = time.perf_counter()
    run = programs[program](directory, f.beam_size, f.length, **arguments)
    loaded = time.perf_counter() - started
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        assert run(sources.tolist()) == count
        seconds.append(time.perf_counter() - started)
    memory = peak_memory() / 1e6
    return {"load": loaded, "rate": count / seconds[-1], "memory": memory}


def measured_in_process(f, directory: str, name: str) -> dict | None:
    """What `measure` returns for a variant in a new process."""
    options = [f"--{option}={f[option].value}" for option in ("shape", "beam_size", "length")]
    return measured(__file__, name, [*options, f"--directory={directory}"])


def main() -> None:
    f = flags.FLAGS
    if f.variant:
        print(json.dumps(measure(f)))
        return
    names = chosen(VARIANTS, f.variants)
    with tempfile.TemporaryDirectory() as directory:
        write_random(f.shape, Path(directory))
        if any(VARIANTS[name][0] == "ctranslate2" for name in names):
            convert(Path(directory))
        measure_variant = partial(measured_in_process, f, directory)
        results = alternating(names, f.rounds, measure_variant)
    print(
        f"| {f.shape}, beam {f.beam_size} | load s | sentences/s (range) | MB of each process |\n"
        "|---|---|---|---|"
    )
    for name, measurements in results.items():
        if measurements:
            rates = sorted(measurement["rate"] for measurement in measurements)
            load = statistics.median(measurement["load"] for measurement in measurements)
            middle = statistics.median(rates)
            memory = "; ".join(f"{measurement['memory']:,.0f}" for measurement in measurements)
            print(
                f"| {name} | {load:.1f} | {middle:.1f} ({rates[0]:.1f}–{rates[-1]:.1f}) | "
                f"{memory} |"
            )


def define_flags() -> None:
    flags.DEFINE_enum("shape", "t5-small", list(SHAPES), "The shape of the model.")
    flags.DEFINE_integer("beam_size", 4, "1 is greedy.")
    flags.DEFINE_integer("length", 32, "Forced number of tokens of every output.")
    flags.DEFINE_integer("rounds", 2, "Measurements of each variant, alternating.", 1)
    flags.DEFINE_string(
        "variants", "", "Only variants whose name contains one of these strings, separated by ;."
    )
    flags.DEFINE_string("variant", "", "Measure this variant in this process (used internally).")
    define_path("directory", "", "The model of --variant (used internally).")


if __name__ == "__main__":
    run_command(define_flags, main)
