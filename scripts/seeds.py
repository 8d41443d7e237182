"""Scores of runs that differ in their seed: mean ± sample standard deviation, and a paired test.

    python scripts/seeds.py --outputs=a0.en,a1.en,a2.en --reference=test.en
    python scripts/seeds.py --outputs=a0.en,a1.en --baseline=b0.en,b1.en --reference=test.en \\
        --metric=bleu,chrf
Each file has the translations of the same input by one run, as decode.py writes them. The p-value
of the difference of the means is that of a paired bootstrap test: it draws lines, not seeds, so
compare the difference with the spread too.
"""

import os
import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.config.data_config import nfc
from seq2seq.data.metrics import tokenizer_hint
from seq2seq.data.seed_groups import compare_groups
from seq2seq.decoding.command.references import DEFAULT_METRICS, metrics_of, reference_lines
from seq2seq.files.lines import text_lines
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.paths import expand_path
from seq2seq.runtime.streams import note


def read_group(flag: str, names: str, lines: int) -> list[list[str]]:
    """The texts of each file of a group. UserError(DATA) for another number of lines."""
    group = []
    for name in names.split(",") if names else ():
        texts = [*map(nfc, text_lines(name))]
        if len(texts) != lines:
            raise UserError(
                DATA,
                f"--{flag}: {name} is not parallel to --reference: expected {lines} lines, got "
                f"{len(texts)}; give translations of the same input",
            )
        group.append(texts)
    return group


def main() -> None:
    f = flags.FLAGS
    names = [*f.outputs.split(","), *(f.baseline.split(",") if f.baseline else ())]
    if "" in names or len({os.path.realpath(expand_path(name)) for name in names}) < len(names):
        raise UserError(
            CONFIGURATION,
            f"expected each file once, got --outputs={f.outputs} --baseline={f.baseline}; give the "
            "translations of a run in one group only",
        )
    metrics = metrics_of(f.metric)
    for metric in metrics:
        metric.check()
    references = reference_lines(f.reference)
    lines = len(references[0])
    if not lines:
        raise UserError(DATA, f"{f.reference} is empty: expected a reference in each line")
    if hint := tokenizer_hint(metrics, *references):
        note(f"{hint}; set --metric")
    outputs = read_group("outputs", f.outputs, lines)
    baseline = read_group("baseline", f.baseline, lines)
    for metric in metrics:
        result = compare_groups(metric, outputs, baseline, *references)
        print(f"{result.name} ({result.signature})\noutputs  {result.outputs}")
        if result.baseline is not None:
            difference = result.outputs.mean - result.baseline.mean
            print(f"baseline {result.baseline}")
            print(f"difference {difference:+.2f}, p-value {result.p_value:.4f}")


def define_flags() -> None:
    define_path("outputs", None, "The translations of the runs of a group.", required=True)
    define_path("baseline", "", "The translations of those of another group.")
    define_path(
        "reference",
        None,
        "The file of the references, or several, separated by commas.",
        required=True,
    )
    flags.DEFINE_string("metric", DEFAULT_METRICS, "Metrics, as --metric of decode.py.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
