"""The commands of docs/RECIPES.md run in one directory, and their files are what it says.

A line of a block is a command of Python, which runs in this process, or one of the shell. A search
repeats its source (tests/support/models/quick_search.py); scores are those of trained models.
"""

import json
import subprocess
from pathlib import Path
from random import Random

import pytest

from seq2seq import Translator
from seq2seq.files.output_files import file_sha256
from tests.support.documents import TEXTS, fenced, parsed_line
from tests.support.models.quick_search import quick_searches
from tests.support.tiny import WORDS
from tests.test_docs_commands import run_command_in, write_inputs

TRAINING = [
    f"--config.{field}={value}"
    for field, value in {
        "data.vocab_size": 70,  # of every run, so that they share their programs
        "training.num_steps": 60,
        "training.eval_every": 60,
        "training.checkpoint_every": 60,
    }.items()
]
DOCUMENT = ["eins zwei. drei (vier!) fünf?", "", "sechs\tsieben.  ", "acht 3.5 neun"]


def write_recipe_inputs(path: Path) -> tuple[list[str], list[str]]:
    """Write the files that the recipes read; returns the lines of own.de, and those of crawled.tsv
    that are translations. The others are copies of the source, and one without text."""
    write_inputs(path)
    (path / "opus-mt-de-en").symlink_to(path / "runs" / "mine")
    random = Random(0)
    sources = [" ".join(random.choices(WORDS, k=3)) for _ in range(600)] + DOCUMENT * 20
    for name in ("train", "own", "mono"):
        (path / f"{name}.de").write_text("\n".join(sources) + "\n", encoding="utf-8")
        (path / f"{name}.en").write_text("\n".join(sources).upper() + "\n", encoding="utf-8")
    (path / "document.de").write_text("\n".join(DOCUMENT) + "\n", encoding="utf-8")
    good = [f"{source}\t{source.upper()}" for source in sources[:50]]
    noise = [f"{source}\t{source}" for source in sources[50:70]] + ["\t"]
    crawled = good[:9] + noise + good[9:]
    (path / "crawled.tsv").write_text("\n".join(crawled) + "\n", encoding="utf-8")
    return sources, good


def run_line(path: Path, line: str, kept: int) -> None:
    """Run a line of a block. `kept` replaces the number of pairs that the document keeps."""
    line = line.replace("head -n 20000", f"head -n {kept}")
    parsed = parsed_line(line)
    for command in parsed:
        run_command_in(path, command, "bpe", flags=TRAINING)
    if not parsed:
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=path, check=True)


@pytest.mark.slow
def test_the_recipes_do_what_they_say(tmp_path):
    own, good = write_recipe_inputs(tmp_path)

    def lines(name):
        return (tmp_path / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")

    def tags(name):
        tokenizer = Translator.load(tmp_path / "runs" / name).source_tokenizer
        return {tokenizer.piece(token) for token in tokenizer.tags}

    blocks = "".join(fenced(TEXTS["docs/RECIPES.md"], "")).replace("\\\n", " ")
    with quick_searches():
        for line in blocks.splitlines():
            run_line(tmp_path, line, len(good))
        stripped = [line.strip() for line in own]
        # Back-translation: a source of each line, and its tag is one piece.
        assert lines("sampled.de") == [line.upper() for line in stripped]
        assert tags("backtranslated") == {">>bt<<"}
        # Distillation: the student has read the outputs of the teachers, not the references.
        assert lines("distilled.en") == stripped
        read = json.loads((tmp_path / "runs/student/run.json").read_text())["data"]
        assert read["distilled.en"] == file_sha256(tmp_path / "distilled.en")
        assert "train.en" not in read
        # Fine-tuning: each pair is in one part, in a line of two columns, with the old vocabulary.
        pairs = lines("own.train.tsv") + lines("own.valid.tsv")
        assert len(lines("own.valid.tsv")) == 500
        assert sorted(pairs) == sorted(f"{s}\t{s.upper()}" for s in own if "\t" not in s)
        assert tags("own") == set()
        # Filtering: all copies and the line without text are dropped.
        assert sorted(lines("filtered.tsv")) == sorted(good)
        # Long documents: lines and sentences are in their places.
        assert len(lines("sentences.tsv")) == 6
        assert lines("document.en") == [" ".join(line.split()) for line in DOCUMENT]
        # Domains: a tag for each, which decoding puts before a line.
        assert tags("domains") == {">>own<<", ">>web<<"}
        assert lines("news.own.en") == [f">>own<< {line}" for line in lines("news.de")]
