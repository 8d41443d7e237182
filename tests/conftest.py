"""For all tests: several CPU devices, one cache of compiled programs, shape annotations checked."""

import gc
import os
import shutil
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

# Before jax starts. Four devices for what is spread over devices; NPROC gives XLA a thread for
# each, since collectives of emulated devices deadlock where threads are fewer.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ["NPROC"] = "16"
# Most of the time of the tests is compilation. Unoptimised code compiles in 60 % of the time, and
# with XLA's older code for fusions in half of that; jaxlib 0.12 has no flag for it. What .ci/run
# trains and decodes is compiled as it is for users.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
optimised = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "0"
if version("jaxlib").startswith("0.10.") and not optimised:
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
# All workers, the processes that they start (their default is XDG_CACHE_HOME/jax-transformer) and
# later runs share compiled programs. The key of an entry is the program, its options and versions.
# TESTS_COMPILED names another directory for them.
ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("TESTS_COMPILED") or ROOT / ".pytest_cache" / "compiled")
os.environ["XDG_CACHE_HOME"] = str(CACHE)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / "jax-transformer")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# tensorboardX imports torch where it is installed: 1.3 s of CPU time in each process that a test
# starts. The tests' own processes keep their path, and torch, for its oracles.
path = str(Path(__file__).parent / "without_torch"), os.environ.get("PYTHONPATH", "")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))

sys.path.insert(0, str(ROOT))

from jaxtyping import install_import_hook  # noqa: E402

pytest_plugins = ["acceptance_table"]

# Every annotated function of these checks shapes and dtypes when it is called or traced.
if find_spec("beartype"):
    install_import_hook(["model", "training.step"], "beartype.beartype")


def pytest_sessionstart(session):
    """Empty the cache of compiled programs where it is above 1 GB."""
    if not hasattr(session.config, "workerinput"):  # xdist's workers start after this process
        sizes = [path.stat().st_size for path in CACHE.rglob("*") if path.is_file()]
        if sum(sizes) > 1e9:
            shutil.rmtree(CACHE)


def pytest_collection_finish():
    """Collect garbage less often, and without what the imports made: tracing makes many objects."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
