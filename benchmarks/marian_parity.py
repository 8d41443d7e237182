"""Benchmark: BLEU and model score of one MarianMT directory, translated by ours and transformers.

    python benchmarks/marian_parity.py --model=DIR --input=FILE --reference=FILE
Both use the directory's defaults; ours without early stopping. On a busy machine OMP_NUM_THREADS=1
keeps torch's threads from waiting for each other. The score is the mean of log-probability /
length, computed by our model. Recorded in docs/MODELS.md.
"""

import statistics
import sys
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.data.metrics import bleu
from seq2seq.decoding.translator import Translator
from seq2seq.runtime.command import run_command
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.lines import text_lines
from seq2seq.runtime.path_flags import define_path


def hf(directory: str, lines: list[str], batch: int = 32) -> list[str]:
    """The translations of transformers' generate."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(directory)
    network, texts = MarianMTModel.from_pretrained(directory, dtype="float32").eval(), []
    with torch.no_grad():
        for at in range(0, len(lines), batch):
            inputs = tokenizer(lines[at : at + batch], return_tensors="pt", padding=True)
            texts += tokenizer.batch_decode(network.generate(**inputs), skip_special_tokens=True)
    return texts


def main() -> None:
    f = flags.FLAGS
    prepare_jax("", decoding_only=True)
    lines, references = (list(text_lines(path)) for path in (f.input, f.reference))
    translator = Translator.load(f.model)
    outputs = {"transformers": hf(f.model, lines), "ours": translator.translate(lines)}
    same = sum(theirs == ours for theirs, ours in zip(*outputs.values(), strict=True))
    print(translator.decoding, file=sys.stderr)
    print("| | BLEU | mean score |\n|---|---|---|")
    scores = {}
    for name, texts in outputs.items():
        results = translator.score(zip(lines, texts, strict=True))
        scores[name] = [result.hypotheses[0].score for result in results]
        print(
            f"| {name} | {bleu(texts, references).value:.2f} | "
            f"{statistics.mean(scores[name]):.4f} |"
        )
    pairs = list(zip(*scores.values(), strict=True))
    print(
        f"{same} of {len(lines)} translations are the same; ours scores higher in "
        f"{sum(b > a + 1e-4 for a, b in pairs)}, lower in {sum(b < a - 1e-4 for a, b in pairs)}"
    )


def define_flags() -> None:
    define_path("model", None, "A MarianMT directory.", required=True)
    define_path("input", None, "A file with one sentence per line.", required=True)
    define_path("reference", None, "Their translations.", required=True)


if __name__ == "__main__":
    run_command(define_flags, main)
