"""training.deterministic is passed to XLA before the backend starts, as XLA's dump shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from several import TINY
from tiny import write_corpus

ROOT = Path(__file__).parents[2]
# train.py with one small program instead of the training, so that XLA dumps its options.
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
def test_xla_is_deterministic_on_a_gpu_if_the_field_is_set(asked, tmp_path):
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
