"""Export: one file translates like decode.py, byte for byte, without this project."""

import json
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from test_commands import run
from tiny import WORDS, write_run

from seq2seq.data.config import DataConfig
from seq2seq.data.special_tokens import END
from seq2seq.data.tokenizers.vocabulary import load_tokenizers
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.decoding.results import Source
from seq2seq.decoding.translator import Translator
from seq2seq.model import platforms
from seq2seq.scripts.export import exported

ROOT = Path(__file__).parents[2]
EXPORT = ROOT / "scripts" / "export.py"
# Runs the file like `python FILE`; importing this project or most of its dependencies fails.
ISOLATED = """
import runpy, sys
sys.path[:] = [path for path in sys.path if path != sys.argv[1]]
project = "seq2seq"
for name in f"{project} flax optax orbax absl tensorflow_datasets".split():
    sys.modules[name] = None
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LINES = [
    " ".join(random.Random(i).choices(WORDS, k=random.Random(i).randint(1, 9))) for i in range(140)
]
LINES[3:9] = ["", "   ", "  eins zwei \r", "drei\u2028vier", "☃ unknown", "zwölf " * 30]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of random weights over a small SentencePiece vocabulary, and a file of lines."""
    path = tmp_path_factory.mktemp("export")
    tokenizer, _ = train_tokenizers(DataConfig(tokenizer="bpe", vocab_size=40), LINES[9:], [])
    write_run(path / "run", tokenizer=tokenizer, output_bias=True)
    (path / "in.txt").write_bytes("\n".join(LINES).encode())
    return path


def export(trained, *arguments, devices=True):
    return run(EXPORT, f"--workdir={trained / 'run'}", *arguments, devices=devices)


def translate_isolated(file, text):
    done = subprocess.run(
        [sys.executable, "-c", ISOLATED, str(ROOT), str(file)],
        input=text,
        cwd=file.parent,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("in_table, min_length", [(True, 0), (False, 9)])
def test_an_exported_program_gives_the_bits_of_an_engine(
    trained, monkeypatch, in_table, min_length
):
    """Wherever the engine of the platform adds the bias, which mixed rounds in the table only. A
    queue of the smallest bucket on one device; empty rows have length 0."""
    pytest.importorskip("flatbuffers")
    monkeypatch.setattr(platforms, "CPU", platforms.CPU._replace(bias_in_table=in_table))
    options = dict(batch_size=4, dtype="mixed", min_length=min_length)
    engine = Translator.load(trained / "run", **options).engine
    params = engine.variables[0]["params"]
    program, size = exported(engine, 16, params, ["cpu"])
    tokenizer = load_tokenizers(str(trained / "run" / "vocab"))[0]
    sources = [ids for ids in tokenizer.encode_many(LINES) if 0 < len(ids) < 15][: size // 2]
    sources += np.random.default_rng(0).integers(4, 40, (size // 2 - 2, 15)).tolist()
    source, lengths = np.zeros((size, 16), np.int32), np.zeros(size, np.int32)
    for row, ids in enumerate(sources):
        lengths[row] = len(ids) + 1
        source[row, : len(ids) + 1] = [*ids, END]
    run = jax.export.deserialize(bytearray(program)).call
    tokens, found, scores = run(jax.tree.leaves(params), source, lengths)
    window = [Source(*numbered) for numbered in enumerate(sources)]
    expected = [result for results in engine.search([window]) for result in results]
    assert len(expected) == len(sources) == size - 2 > 40
    for (row, *_), (best, *_) in expected:
        assert tokens[row, 0, : found[row, 0] - 1].tolist() == best.ids
        assert scores[row, 0] == np.float32(best.score)
    assert not found[len(sources) :].any()


@pytest.mark.slow
def test_an_exported_file_gives_the_bytes_of_decode_without_this_project(trained):
    pytest.importorskip("flatbuffers")
    options = [
        "--max_length_ratio=1.7",
        "--min_length=2",
        "--alpha=0.9",
        "--batch_size=4",
        "--no_repeat_ngram=2",
    ]
    code, _, err = export(trained, f"--to={trained / 'a.zip'}", "--platforms=cpu,tpu", *options)
    assert code == 0, err
    code, live, _ = run(
        ROOT / "decode.py",
        f"--workdir={trained / 'run'}",
        *options,
        f"--input={trained / 'in.txt'}",
    )
    assert code == 0 and live.count("\n") == len(LINES) and len(set(live.split("\n"))) > 15
    text = (trained / "in.txt").read_bytes()
    assert translate_isolated(trained / "a.zip", text).decode() == live
    assert translate_isolated(trained / "a.zip", b"") == b""
    with zipfile.ZipFile(trained / "a.zip") as archive:
        card = json.loads(archive.read("card.json"))
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert [one["tokens"] for one in card["buckets"]] == [16, 32]
    assert card["platforms"] == ["cpu", "tpu"] and card["decoding"]["alpha"] == 0.9


def test_the_loader_does_not_import_this_project():
    loader = (ROOT / "scripts" / "load_exported.py").read_text(encoding="utf-8")
    imported = {
        line.split()[1].partition(".")[0]
        for line in loader.split("\n")
        if line.startswith(("import ", "from "))
    }
    assert imported - set(sys.stdlib_module_names) == {"jax", "numpy", "sentencepiece"}


BAD = {
    "--to={d}/in.txt": (6, "--overwrite"),
    "--platforms=cpu,gpu": (2, "cpu, cuda, rocm, tpu, got 'cpu,gpu'"),
    "--buckets=16,33": (2, "from 2 to 32, got '16,33'"),
    "--samples=2": (2, "sampling cannot be exported"),
    "--top_k=2": (2, "--top_k has no effect on an exported file"),
    "--beam_size=0": (2, "decoding.beam_size must be at least 1"),
    "--workdir={d}/words": (
        2,
        "only SentencePiece vocabularies (unigram, bpe) can be exported, got words",
    ),
    "--workdir={d}/rnn": (2, "model.kind=rnn cannot be exported: expected transformer"),
    "--workdir={d}": (4, "not a run directory"),
}


@pytest.mark.parametrize("flag", BAD)
def test_an_unsupported_export_is_one_line_before_any_device_is_used(flag, trained):
    pytest.importorskip("flatbuffers")
    if "words" in flag and not (trained / "words").exists():
        write_run(trained / "words")
    if "rnn" in flag and not (trained / "rnn").exists():
        write_run(trained / "rnn", kind="rnn")
    expected_code, part = BAD[flag]
    code, out, err = export(
        trained, f"--to={trained / 'b.zip'}", flag.format(d=trained), devices=False
    )
    assert (code, out, len(err)) == (expected_code, "", 1), err
    assert err[0].startswith("error: ") and part in err[0]
