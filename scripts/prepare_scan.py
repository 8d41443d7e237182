"""Convert the published files of SCAN, `IN: jump twice OUT: I_JUMP I_JUMP`, to command<TAB>actions.

    python scripts/prepare_scan.py --input=tasks_test_simple.txt.gz --output=test.tsv
    python scripts/prepare_scan.py --input=tasks_train_simple.txt.gz --output=train.tsv \\
        --valid=valid.tsv --valid_every=20
The published splits have no validation set: the second command holds out every 20th line.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.files.lines import numbered_lines
from seq2seq.files.output_files import check_outputs, write_lines
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError


def read_scan(path: str) -> Iterator[tuple[str, str]]:
    """Commands and actions, words separated by one space. UserError(DATA) for a malformed line."""
    for number, line in numbered_lines(path):
        match = re.fullmatch(r"\s*IN:(.*\S.*)\sOUT:(.*\S.*)", line, re.DOTALL)
        sides = [" ".join(side.split()) for side in match.groups()] if match else []
        if not all(sides) or not match or "OUT:" in " ".join(sides):
            raise UserError(
                DATA, f"{path}:{number}: expected 'IN: commands OUT: actions', got {line[:60]!r}"
            )
        yield sides[0], sides[1]


def main() -> None:
    f = flags.FLAGS
    if bool(f.valid) != bool(f.valid_every):
        raise UserError(
            CONFIGURATION,
            "expected --valid and --valid_every together, or neither, got "
            f"--valid={f.valid} --valid_every={f.valid_every}",
        )
    check_outputs(filter(None, (f.output, f.valid)), f.overwrite, [f.input])
    lines = ["\t".join(pair) for pair in read_scan(f.input)]
    held_out = set(range(f.valid_every - 1, len(lines), f.valid_every)) if f.valid else set()
    for path, members in ((f.output, set(range(len(lines))) - held_out), (f.valid, held_out)):
        if path:
            count = write_lines(path, (lines[i] for i in sorted(members)), f.overwrite)
            print(f"{path}: {count:,} pairs", file=sys.stderr)


def define_flags() -> None:
    define_path("input", None, "The published file, plain or compressed.", required=True)
    define_path("output", None, "The file of tab-separated pairs to write.", required=True)
    define_path("valid", "", "The file of held-out pairs to write.")
    flags.DEFINE_integer("valid_every", 0, "Hold out every n-th pair; 0: none.", 0)
    flags.DEFINE_bool("overwrite", False, "Replace existing files.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
