"""The commands of benchmarks/: their flags and input, and what their peers are asked for."""

import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from benchmarks import decode_speed, export, marian_parity, window_planning
from seq2seq.runtime.errors import DATA
from tests.support.in_process import call_in_process, call_main
from tests.support.models.tiny_marian import SENTENCES, write_marian

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


def call(benchmark, *arguments):
    """The result of a benchmark in this process."""
    command = patch.object(
        benchmark, "run", lambda: call_main(benchmark.define_flags, benchmark.main), create=True
    )
    with command:
        return call_in_process(benchmark, *arguments)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_a_command_whose_help_begins_with_its_docstring(name):
    content = (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8")
    assert content.endswith("    run_command(define_flags, main)\n")
    benchmark = import_module(f"benchmarks.{name}")
    done = call(benchmark, "--help")
    assert (done.code, done.err) == (0, [])
    assert done.out.startswith(benchmark.__doc__.splitlines()[0]) and "\n  --" in done.out


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A MarianMT directory whose outputs end only at their limit."""
    from safetensors.numpy import load_file, save_file

    path = tmp_path_factory.mktemp("endless")
    write_marian(path, max_position_embeddings=90)
    weights = load_file(path / "model.safetensors")
    weights["final_logits_bias"][0, 0] = -1e4
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def test_hf_translates_each_line_in_its_place(endless):
    pytest.importorskip("transformers")
    f = SimpleNamespace(model=endless, beam_size=2, length=7)
    lines = SENTENCES[:5]
    alone = [text for line in lines for text in decode_speed.hf(f, batch=1)([line])]
    assert len(set(alone)) > 3
    assert decode_speed.hf(f, batch=2)(lines) == alone


@pytest.mark.parametrize("length", [7, 0])
def test_hf_generates_as_many_tokens_as_the_limit(endless, monkeypatch, length):
    """The token that starts the decoder is none of them."""
    transformers = pytest.importorskip("transformers")
    generate, shapes = transformers.MarianMTModel.generate, []

    def watched(self, **options):
        ids = generate(self, **options)
        shapes.append(ids.shape)
        return ids

    monkeypatch.setattr(decode_speed, "EXTRA", 5)
    monkeypatch.setattr(transformers.MarianMTModel, "generate", watched)
    f = SimpleNamespace(model=endless, beam_size=2, length=length)
    decode_speed.hf(f, batch=1)(SENTENCES[:1])
    source = transformers.MarianTokenizer.from_pretrained(endless)(SENTENCES[0]).input_ids
    assert shapes == [(1, 1 + (length or len(source) + 5))]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_last_line_without_a_line_feed_is_read(tmp_path, monkeypatch, end):
    (tmp_path / "in").write_text(f"a b c d\u2028e\nf g h i{end}")
    f = SimpleNamespace(input=str(tmp_path / "in"), lines=0)
    assert decode_speed.input_lines(f) == ["a b c d\u2028e", "f g h i"]
    score = SimpleNamespace(hypotheses=[SimpleNamespace(score=-1.0)])
    echo = SimpleNamespace(
        decoding="", translate=lambda lines: lines, score=lambda pairs: [score for _ in pairs]
    )
    monkeypatch.setattr(marian_parity, "hf", lambda model, lines: lines)
    monkeypatch.setattr(marian_parity, "Translator", SimpleNamespace(load=lambda model: echo))
    paths = (f"--{name}={tmp_path / 'in'}" for name in ("input", "reference"))
    done = call(marian_parity, "--model=none", *paths)
    assert done.code == 0, done.err
    assert "| ours | 100.00 | -1.0000 |\n2 of 2 translations are the same" in done.out


@pytest.mark.parametrize("pairs", [1, 2000])
def test_the_waits_of_a_small_store_are_measured(tmp_path, monkeypatch, pairs):
    """Its windows have fewer than four batches."""
    rest = iter(range(100))
    clock = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: next(rest))
    monkeypatch.setattr(window_planning, "time", clock)
    first, longest = window_planning.waits(window_planning.random_pairs(tmp_path, pairs))
    assert 0 < first < 60 and 0 < longest < 60
    assert next(rest) >= 3  # windows


ECHO = "class model:\n    translate = staticmethod(lambda lines: lines)\n"
EXPORT = """
import os, sys
run, to = (argument.partition("=")[2] for argument in sys.argv[1:])
assert os.path.isdir(run), run
open(to, "w").write("12345")
"""


@pytest.fixture
def exporting(tmp_path, monkeypatch):
    """A function that runs benchmarks/export.py with a fake export of the run `here/run`, started
    in `here`; its models are made by `load`."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "export.py").write_text(EXPORT)
    (tmp_path / "here" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(export, "ROOT", tmp_path)

    def run(load, *arguments):
        monkeypatch.setattr(export, "LOAD", dict.fromkeys(export.LOAD, load))
        return call(export, "--workdir=run", "--rounds=1", *arguments)

    return run


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_benchmark_of_an_export_takes_relative_paths_and_counts_the_lines(exporting, end):
    Path("in").write_text(f"a\nb{end}")
    done = exporting(ECHO, "--input=in")
    assert done.code == 0, done.err
    assert "\n5 bytes; 2 lines; byte-identical: yes\n" in done.out


def test_the_benchmark_of_an_export_shows_why_a_process_failed(exporting, capfd):
    Path("in").write_text("a\n")
    done = exporting("raise ValueError('why')", "--input=in")
    assert (done.code, done.out) == (1, "") and "ValueError: why" in capfd.readouterr().err
    missing = exporting(ECHO, "--input=none")
    assert (missing.code, len(missing.err)) == (DATA, 1) and "does not exist" in missing.err[0]
