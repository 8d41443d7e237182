"""Batch decoding from the command line: unusual lines; neighbours and devices do not matter."""

import random
from pathlib import Path

import jax
import pytest

from seq2seq.decode import describe
from seq2seq.decoding.translator import Translator
from seq2seq.runtime.precision import has_bfloat16_instructions
from tests.support.forked import call_forked
from tests.support.tiny import mixed_lines, write_run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("batch")
    write_run(path / "run")
    return path


def decode(path, *flags, devices=1, stdin=b"", check=True):
    done = call_forked(
        [ROOT / "decode.py", f"--workdir={path / 'run'}", *flags], stdin, devices=devices
    )
    assert done.code == 0 or not check, done.err
    return done.out.split("\n")[:-1], done.err


@pytest.fixture(scope="module")
def decoded(run):
    """Lines with the output and stderr of decode.py on one device."""
    lines = mixed_lines(700)
    return lines, *decode(run, stdin="".join(f"{line}\n" for line in lines).encode())


def test_hundreds_of_lines_of_all_kinds_give_one_output_line_each(decoded):
    """tests/acceptance/test_decoding_faults.py translates ten thousand; it also has n-best lists,
    batch sizes and closed pipes."""
    lines, out, err = decoded
    assert len(out) == len(lines)
    blank = [not line.strip() for line in lines]
    assert all(
        translation == "" for translation, is_blank in zip(out, blank, strict=True) if is_blank
    )
    long = sum(len(line.split()) > 28 for line in lines)
    assert long > 1 and sum("4001 tokens > " in line for line in err) == long
    assert err[-1].startswith(f"{len(lines)} lines, {sum(blank)} blank, {long} truncated, ")


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_mixed_is_recommended_on_a_cpu_with_bfloat16_instructions(run, dtype, capsys):
    describe(Translator.load(run / "run", dtype=dtype))
    devices, *hints = capsys.readouterr().err.splitlines()
    assert "devices (cpu)" in devices and all("--dtype=mixed" in hint for hint in hints)
    assert len(hints) == (dtype == "float32" and has_bfloat16_instructions())


def test_neighbours_parts_and_devices_do_not_change_a_translation(run, decoded):
    """One device of another process, and four of this one."""
    lines, usual = (texts[:150] for texts in decoded[:2])
    translator = Translator.load(run / "run")
    assert jax.local_device_count() == 4
    assert translator.translate(lines) == usual
    order = random.Random(3).sample(range(len(lines)), len(lines))
    shuffled = translator.translate([lines[i] for i in order])
    assert shuffled == [usual[i] for i in order]
    parts = [translator.translate(lines[start : start + 50]) for start in (0, 50, 100)]
    assert sum(parts, []) == usual
