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
# Tests do little else than compile: unoptimised code comes in two thirds of the time. What .ci/run
# trains and decodes is compiled as it is for users.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

sys.path.insert(0, str(Path(__file__).parent.parent))

from jaxtyping import install_import_hook  # noqa: E402

pytest_plugins = ["acceptance_table"]

# Every annotated function of these checks shapes and dtypes when it is called or traced.
if find_spec("beartype"):
    install_import_hook(["model", "training.step"], "beartype.beartype")
