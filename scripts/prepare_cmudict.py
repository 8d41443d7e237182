"""Convert CMUDict to characters<TAB>phonemes, and compute the word error rate of a model.

    python scripts/prepare_cmudict.py --input=cmudict-0.7b.train-dev-20-21.gz --output=train.tsv
    python scripts/prepare_cmudict.py --input=cmudict-0.7b.test.gz --distinct --output=test.tsv
    cut -f1 test.tsv | python decode.py --workdir=RUN --output=test.out
    python scripts/prepare_cmudict.py --input=cmudict-0.7b.test.gz --score=test.out
The dictionary has one line per pronunciation. Each is a pair, or only the first one of a word with
--distinct. In scoring, an output is right if it equals any pronunciation of the word.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import refuse_flags, run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.files.lines import numbered_lines
from seq2seq.files.output_files import check_outputs, write_lines
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError


def read_dictionary(path: str) -> dict[str, list[str]]:
    """The distinct pronunciations of each word, words in the order of their first lines.

    UserError(DATA) for a line that is not a word, two spaces and phonemes.
    """
    words: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        word, _, phonemes = line.partition("  ")
        if not phonemes.strip() or word.split() != [word]:
            raise UserError(
                DATA,
                f"{path}:{number}: expected a word, two spaces and phonemes, got {line[:60]!r}",
            )
        word = re.sub(r"(?<=.)\(\d+\)$", "", word)  # the full dictionary repeats WORD as WORD(1)
        known, phonemes = words.setdefault(word, []), " ".join(phonemes.split())
        if phonemes not in known:
            known.append(phonemes)
    return words


def dictionary_pairs(words: dict[str, list[str]], distinct: bool) -> list[str]:
    """A line for each pronunciation, or with `distinct` for the first one of each word."""
    return [
        f"{' '.join(word)}\t{phonemes}"
        for word, known in words.items()
        for phonemes in (known[:1] if distinct else known)
    ]


def count_wrong(outputs: Sequence[str], words: dict[str, list[str]]) -> int:
    """How many outputs equal none of the pronunciations of their word; same order as `words`."""
    return sum(
        " ".join(output.split()) not in known
        for output, known in zip(outputs, words.values(), strict=True)
    )


def main() -> None:
    f = flags.FLAGS
    if bool(f.output) == bool(f.score):
        raise UserError(
            CONFIGURATION,
            "expected either --output=FILE, to prepare, or --score=FILE, "
            f"got --output={f.output} --score={f.score}",
        )
    if f.score:
        refuse_flags(["distinct", "overwrite"], "with --score")
    if f.output:
        check_outputs([f.output], f.overwrite, [f.input, f.without])
    words = read_dictionary(f.input)
    if f.without:
        known = read_dictionary(f.without)
        words = {word: phonemes for word, phonemes in words.items() if word not in known}
    if not words:
        raise UserError(
            DATA,
            f"{f.input} has no words" + (f" that are not in {f.without}" if f.without else ""),
        )
    if f.output:
        count = write_lines(f.output, dictionary_pairs(words, f.distinct), f.overwrite)
        print(f"{f.output}: {count:,} pairs, {len(words):,} words", file=sys.stderr)
        return
    outputs = [line for _, line in numbered_lines(f.score)]
    if len(outputs) != len(words):
        raise UserError(
            DATA,
            f"{f.score} has {len(outputs)} lines, {f.input} has {len(words)} "
            "different words; decode the output of --distinct with the same --without",
        )
    wrong = count_wrong(outputs, words)
    print(
        f"word error rate {100 * wrong / len(words):.2f} % ({wrong:,} of {len(words):,} words "
        "equal none of their pronunciations)"
    )


def define_flags() -> None:
    define_path("input", None, "The dictionary, plain or compressed.", required=True)
    define_path("output", "", "The file of tab-separated pairs to write.")
    define_path("score", "", "Outputs, one line per word; prints their error rate.")
    flags.DEFINE_bool("distinct", False, "Write one pair per word.")
    define_path("without", "", "Omit the words of this dictionary.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing file.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
