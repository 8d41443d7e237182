"""Convert the published archive of SAMSum, chats and their summaries, to dialogue<TAB>summary.

    python scripts/prepare_samsum.py --input=samsum.zip --split=train --output=train.tsv
The turns of a dialogue are joined by <turn>, which becomes one piece of the vocabulary with
--config.data.user_defined='<turn>'. A pair without a dialogue or a summary is omitted.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.files.output_files import check_outputs, write_lines
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.paths import expand_path

SPLITS = ("train", "validation", "test")
TURN = " <turn> "


def read_samsum(path: str, split: str) -> Iterator[tuple[str, str]]:
    """Dialogues and summaries, each on one line, with single spaces between words.

    UserError(DATA) if the file is not the archive.
    """
    import pyarrow

    name = f"samsum/{split}/dataset.arrow"
    try:
        with ZipFile(expand_path(path)) as archive, archive.open(name) as file:
            table = pyarrow.ipc.open_stream(file).read_all()
        columns = [table[column].to_pylist() for column in ("dialogue", "summary")]
    except (OSError, BadZipFile, KeyError, ValueError) as error:  # of Arrow: ValueError
        raise UserError(
            DATA,
            f"{path} cannot be read: expected samsum.zip with {name} and its columns dialogue and "
            f"summary, got: {error}",
        ) from None
    for dialogue, summary in zip(*columns, strict=True):
        turns = (" ".join(turn.split()) for turn in re.split(r"[\r\n]+", dialogue))
        yield TURN.join(filter(None, turns)), " ".join(summary.split())


def main() -> None:
    f = flags.FLAGS
    check_outputs([f.output], f.overwrite, [f.input])
    pairs = list(read_samsum(f.input, f.split))
    lines = ["\t".join(pair) for pair in pairs if all(pair)]
    count = write_lines(f.output, lines, f.overwrite)
    print(f"{f.output}: {count:,} pairs, {len(pairs) - count:,} omitted", file=sys.stderr)


def define_flags() -> None:
    define_path("input", None, "The published file samsum.zip.", required=True)
    flags.DEFINE_enum("split", "train", SPLITS, "The part of the data to convert.")
    define_path("output", None, "The file of tab-separated pairs to write.", required=True)
    flags.DEFINE_bool("overwrite", False, "Replace an existing file.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
