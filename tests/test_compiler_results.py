"""XLA's fused reductions on a CPU give the results of training and decoding without them.

XLA reads its flags once per process, so compiler_results.py runs in two processes: one as for
users, one without fused reductions and with the fast compilation of conftest.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "support" / "programs" / "compiler_results.py"
WITHOUT_FUSIONS = "--xla_cpu_experimental_ynn_fusion_type=-reduce"
# Of the largest value of a program. Results in bfloat16 may be rounded to a neighbour.
TOLERANCES = dict.fromkeys(("post", "rnn_attention", "beam", "sampling", "scoring"), 1e-4)
NARROW = 0.02


@pytest.mark.slow
def test_fused_reductions_change_results_by_rounding_only_and_no_fusion_is_a_wrong_one(tmp_path):
    results = []
    plain_flags = f"{WITHOUT_FUSIONS} {os.environ['TESTS_XLA_FLAGS']}"
    for flags, plain in (("", "0"), (plain_flags, "1")):
        path = tmp_path / f"{len(results)}.npz"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": plain}
        subprocess.run([sys.executable, SCRIPT, path], env=environment, check=True)
        results.append(dict(np.load(path)))
    fused, plain = results
    assert (fused.pop("control"), plain.pop("control")) == (1, 0)  # wrong fusions are recognised
    assert fused.keys() == plain.keys() and len(fused) > 100
    largest: dict[str, float] = {}  # of the arrays of a program: updates, metrics, tokens, scores
    for name, expected in plain.items():
        program = name[: name.index("]")]
        largest[program] = max(largest.get(program, 0.0), np.abs(expected.astype(float)).max())
    for name, expected in plain.items():
        tolerance = TOLERANCES.get(name.split()[0], NARROW) * largest[name[: name.index("]")]]
        np.testing.assert_allclose(fused[name], expected, rtol=0, atol=tolerance, err_msg=name)
