"""Programs compiled for a TPU and a GPU, neither of which is present.

conftest.py sets flags for fast compilation, so accelerator_programs.py runs in its own process.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from seq2seq.model.config import num_parameters
from tests.support.programs.accelerator_programs import (
    BUCKET,
    CONFIG,
    DIVIDED,
    MODEL,
    QUEUES,
    ROWS,
    SEARCH,
)  # fmt: skip

# A folder with compilers that are not in the environment, where JAX would look for devices.
COMPILERS = os.environ.get("ACCELERATOR_COMPILERS", "")
ENVIRONMENT = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": "", "PYTHONPATH": COMPILERS}
SCRIPT = Path(__file__).parent / "support" / "programs" / "accelerator_programs.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "target, package", [("v5e:2x2", "libtpu"), ("h100:2", "jax_cuda12_plugin")]
)
def test_programs_for_an_accelerator_have_what_their_design_says(target, package):
    if not (Path(COMPILERS) / package).exists() and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, SCRIPT, target], env=os.environ | ENVIRONMENT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    programs = json.loads(done.stdout)
    assert programs.keys() == {
        "training", "evaluation", "training, divided", "evaluation, divided", "scoring", "beam",
        "beam, longer queue",
    }  # fmt: skip
    for name, facts in programs.items():
        assert facts["host"] == facts["callbacks"] == [] and not facts["float64"], name
    # On a TPU, each attention of full rows is a kernel of model/fused_attention.py, or two.
    attentions = (MODEL.num_layers + 2 * MODEL.decoder_layers) * target.startswith("v")
    for divided in ("", ", divided"):
        assert programs[f"evaluation{divided}"]["kernels"] == attentions
        assert programs[f"training{divided}"]["kernels"] == 2 * attentions
    parameters = 4 * num_parameters(MODEL)
    training = programs["training"]
    # The state is parameters and two moments; the results are the state and a few numbers.
    assert (
        3 * parameters <= training["aliased"] and training["results"] < 1.01 * training["aliased"]
    )
    # The gradients and sums of all micro-batches, in one message or one for each of the two.
    assert 1 <= training["all_reduces"] <= 2 and training["all_reduces_in_loops"] == 0
    assert parameters <= training["all_reduced"] < 1.01 * parameters
    assert programs["evaluation"]["all_reduced"] < 1000
    # Two devices that share a model have half of the parameters and moments each, and add up the
    # results of their attentions and feed-forward layers, two in an encoder layer and three in a
    # decoder layer, and of their embeddings.
    training, evaluation = programs["training, divided"], programs["evaluation, divided"]
    half = 4 * num_parameters(DIVIDED.model) / 2
    assert half < evaluation["arguments"] < 1.1 * half
    assert 3 * half < training["aliased"] < 3.1 * half
    sums = 2 * MODEL.num_layers + 3 * MODEL.decoder_layers + 2
    numbers = sums * ROWS * CONFIG.data.target_length * MODEL.d_model
    width = 2 if target.startswith("v") else 4  # on a GPU XLA adds float32
    assert 1 <= evaluation["all_reduced"] / (width * numbers) < 1.05
    # On a GPU the host would decide each conditional.
    assert target.startswith("v") or not programs["beam"]["conditionals_in_step"]
    # A longer queue takes memory for tokens and encodings of its sentences, not for caches.
    short, long = programs["beam"], programs["beam, longer queue"]
    sentences = (QUEUES[1] - QUEUES[0]) * SEARCH.batch_size
    growth = sum(long[kind] - short[kind] for kind in ("arguments", "results", "temporary"))
    encoding = BUCKET * MODEL.d_model * 2
    tokens = 4 * (BUCKET + SEARCH.max_extra_length) * SEARCH.beam_size
    caches = 2 * MODEL.decoder_layers * tokens // 4 * MODEL.d_model * 2
    assert growth / sentences < 3 * (encoding + tokens) < caches
