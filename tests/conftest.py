"""For all tests: several CPU devices, our packages on the path, shape annotations checked."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Before jax starts. Four devices for what is spread over devices; NPROC gives XLA a thread for
# each, since collectives of emulated devices deadlock where threads are fewer.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ["NPROC"] = "16"

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# Every annotated function of these checks shapes and dtypes when it is called or traced.
if find_spec("beartype"):
    install_import_hook(["model", "training.step"], "beartype.beartype")


@pytest.fixture(scope="module")
def quick_compilation():
    """Compile without optimising: half the time of tests that do little else than compile."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
