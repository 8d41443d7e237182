"""The commands of benchmarks/: their flags."""

from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import pytest
from in_process import call_in_process, call_main

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
