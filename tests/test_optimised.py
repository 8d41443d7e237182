"""Bit identity with XLA optimisations: runs the tests of optimised.py in a separate process.

XLA reads its flags once per process, and conftest.py sets flags for fast compilation.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_results_are_bit_identical_with_optimisations():
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    # One LLVM module for each program is optimised as several are, in three quarters of the time.
    flags = "--xla_cpu_parallel_codegen_split_count=1"
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": flags}
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
            Path(__file__).parent / "support" / "programs" / "optimised.py",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-9000:]
