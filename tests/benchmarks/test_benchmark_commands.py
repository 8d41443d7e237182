"""The commands of benchmarks/: their flags and input, and what their peers are asked for."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from benchmarks import decode_speed
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
def test_a_last_line_without_a_line_feed_is_read(tmp_path, end):
    (tmp_path / "in").write_text(f"a b c d\u2028e\nf g h i{end}")
    f = SimpleNamespace(input=str(tmp_path / "in"), lines=0)
    assert decode_speed.input_lines(f) == ["a b c d\u2028e", "f g h i"]
