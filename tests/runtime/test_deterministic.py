"""training.deterministic reaches XLA before the backend starts, as XLA itself reports it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from several import TINY
from tiny import write_corpus

ROOT = Path(__file__).parents[2]
# train.py; the training itself is one small program, so that its options are written.
SCRIPT = """
import train
from runtime.command import run_command

def compile_something(*_):
    import jax
    jax.jit(lambda x: x + 1.0)(1.0)

train.train = compile_something
run_command(train.define_flags, train.main)
"""


@pytest.mark.parametrize("asked", [True, False])
def test_xla_computes_deterministically_on_a_gpu_if_asked_to(asked, tmp_path):
    corpus = write_corpus(tmp_path / "pairs.tsv", 61)
    flags = [
        *TINY,
        f"--config.data.corpus={corpus}",
        f"--workdir={tmp_path / 'run'}",
        f"--config.training.deterministic={asked}",
        "--compilation_cache=off",
    ]
    environment = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path / 'xla'}"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, *flags],
        env=environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    written = [path.read_text() for path in (tmp_path / "xla").glob("*debug_options")]
    assert written
    assert all(("xla_gpu_deterministic_ops: true" in text) == asked for text in written)
