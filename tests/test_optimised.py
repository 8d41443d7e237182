"""Bit identity with XLA's optimisations on: the tests of optimised.py, in a process of their own.

XLA reads its flags once in a process, and conftest.py sets those that compile fast.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_what_is_equal_bit_for_bit_is_so_with_optimisations_on():
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    folders = [str(Path(__file__).parent / name) for name in ("decoding", "model", "training")]
    environment["PYTHONPATH"] = os.pathsep.join([*folders, environment.get("PYTHONPATH", "")])
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-q",
            "-p",
            "no:cacheprovider",
            Path(__file__).parent / "optimised.py",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-9000:]
