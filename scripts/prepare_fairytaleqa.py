"""Convert FairytaleQA, questions on story sections, to answer <section> section<TAB>question.

    python scripts/prepare_fairytaleqa.py --input=train.jsonl.gz --output=train.tsv
The input has a JSON object in each line, with the fields section, answer and question. <section>
becomes one piece of the vocabulary with --config.data.user_defined='<section>'.
"""

import json
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
from seq2seq.runtime.errors import DATA, UserError

FIELDS = ("answer", "section", "question")
SECTION = "<section>"


def read_fairytaleqa(path: str) -> Iterator[tuple[str, str]]:
    """Sources (answer and section) and questions, with single spaces between words.

    UserError(DATA) for a line that is not an object with the texts of FIELDS.
    """
    for number, line in numbered_lines(path):
        try:
            entry = json.loads(line)
            answer, section, question = (" ".join(entry[name].split()) for name in FIELDS)
        except (ValueError, KeyError, TypeError, AttributeError):
            answer = section = question = ""
        if not (answer and section and question):
            raise UserError(
                DATA,
                f"{path}:{number}: expected a JSON object with the texts {', '.join(FIELDS)}, got "
                f"{line[:60]!r}",
            )
        yield f"{answer} {SECTION} {section}", question


def main() -> None:
    f = flags.FLAGS
    check_outputs([f.output], f.overwrite, [f.input])
    lines = ["\t".join(pair) for pair in read_fairytaleqa(f.input)]
    print(f"{f.output}: {write_lines(f.output, lines, f.overwrite):,} pairs", file=sys.stderr)


def define_flags() -> None:
    define_path("input", None, "The file of JSON lines, plain or compressed.", required=True)
    define_path("output", None, "The file of tab-separated pairs to write.", required=True)
    flags.DEFINE_bool("overwrite", False, "Replace an existing file.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
