"""Settings of all tests: CPU devices, a shared compilation cache, checks of shape annotations."""

import gc
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

# Set before jax starts. Four devices for tests of data parallelism. NPROC gives XLA a thread per
# device: collectives of emulated devices deadlock with fewer threads.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ["NPROC"] = "16"
# The tests spend most of their time in compilation. Without optimisations it takes 60 % of the
# time, with XLA's older fusion code half of that, and with one LLVM module for each program three
# quarters of that (jaxlib 0.12 has no flag for the older code). The training and decoding of
# .ci/run are compiled with optimisations, as for users.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
optimised = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "0"
FAST = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
is_old = version("jaxlib").startswith("0.10.")
# forked.py adds these flags to those of a command.
os.environ["TESTS_XLA_FLAGS"] = FAST if is_old and not optimised else ""
os.environ["XLA_FLAGS"] += " " + os.environ["TESTS_XLA_FLAGS"]
# Without the stack of each operation, tracing and compiling take 5 % less time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# All workers, their child processes (whose default is XDG_CACHE_HOME/jax-transformer) and later
# runs share compiled programs, keyed by program, options and versions. TESTS_COMPILED is another
# directory for them.
ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("TESTS_COMPILED") or ROOT / ".pytest_cache" / "compiled")
os.environ["XDG_CACHE_HOME"] = str(CACHE)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / "jax-transformer")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# All processes share the bytecode of modules as well: without it, each that trains compiles them in
# 0.7 s. Some systems and editors switch it off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Temporary files are in memory if there is room: fsync and deletions on a disk take a quarter of
# the CPU time of tests that write checkpoints, and two thirds of their time.
MEMORY = "/dev/shm"
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
    if shutil.disk_usage(MEMORY).free > 4e9:
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

MOST_BYTES = 3_000_000_000  # of a worker, before it releases compiled programs
LONGEST = (  # files of a minute or near the end of the collection
    "test_trained", "test_compiler_results", "test_docs_commands", "test_installed",
    "test_optimised", "test_resume", "test_training_",
)  # fmt: skip

ANNOTATED = ("data", "model", "training")  # packages with shapes in annotations
# Files of tests/model without these checks: the others call every annotated function too.
UNCHECKED = (
    "architecture beam_search beam_stopping dropout ensemble matmul model_oracles nonfinite "
    "parameters sampling transformer"
).split()

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

PLUGINS = "acceptance_table", "memory_storage", "processor_time"
pytest_plugins = [f"tests.support.plugins.{name}" for name in PLUGINS]

# Annotated functions of these modules check shapes and dtypes when they are called or traced.
if find_spec("beartype"):
    import tests.support.annotations  # noqa: F401 – the hook below finds it by its name

    # Of data, only modules whose functions are called rarely: each check takes about 0.1 ms.
    arrays = (
        "tokens.training_pairs",
        "batching.loss_weights",
        "batching.packing",
        "batching.windows",
    )
    checked = [f"seq2seq.data.{name}" for name in arrays]
    checked += ["seq2seq.training.step", "seq2seq.training.loss"]
    without_shapes = {"checks", "config", "kinds", "options", "parameters", "platforms"}
    paths = (path.relative_to(ROOT / "model") for path in (ROOT / "model").rglob("*.py"))
    names = {".".join(path.with_suffix("").parts) for path in paths} - without_shapes
    checked += [f"seq2seq.model.{name}" for name in names]
    install_import_hook(checked, "tests.support.annotations.checked")

from seq2seq.runtime.devices import usable_cores  # noqa: E402


def pytest_sessionstart(session):
    """Empty the cache of compiled programs if it is above 1 GB."""
    if not hasattr(session.config, "workerinput"):  # xdist starts its workers later
        sizes = [path.stat().st_size for path in CACHE.rglob("*") if path.is_file()]
        if sum(sizes) > 1e9:
            shutil.rmtree(CACHE)


def pytest_collection_modifyitems(items):
    """The longest files first: the workers start the files in this order."""
    items.sort(key=lambda item: not item.path.name.startswith(LONGEST))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Check annotations only in fast tests of the packages that have them: without the checks,
    tracing takes a third less time."""
    package, name = item.path.relative_to(ROOT / "tests").parts[0], item.path.stem
    is_checked = package in ANNOTATED and item.get_closest_marker("slow") is None
    is_checked &= package != "model" or name.removeprefix("test_") not in UNCHECKED
    jaxtyping.config.update("jaxtyping_disable", not is_checked)


def pytest_xdist_auto_num_workers():
    """One for each core that this process may use. One more takes as long, and 8 % more processor
    time: each worker imports and collects everything, and compiles small programs."""
    return usable_cores()


@pytest.fixture
def short_cache_blocks(monkeypatch):
    """The caches of short searches have several blocks too."""
    monkeypatch.setattr("seq2seq.model.cache.MIN_STEPS", 1)


@pytest.fixture(scope="module", autouse=True)
def limited_memory():
    """Release the compiled programs of earlier modules if this process holds too much memory."""
    yield
    if resident_bytes() > MOST_BYTES:
        jax.clear_caches()
        gc.collect()


def resident_bytes() -> int:
    """The memory that this process occupies; 0 without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def pytest_collection_finish():
    """Collect garbage less often and skip imported objects: tracing creates many objects."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
