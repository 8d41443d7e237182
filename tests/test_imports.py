"""The source tree: allowed imports, descriptions in line 1, no unsafe calls."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "runtime",
    "model",
    "data",
    "storage",
    "interop",
    "training",
    "decoding",
    "configs",
    "scripts",
    "benchmarks",
    "examples",
)
COMMANDS = ("train", "decode")
OURS = {*FOLDERS, *COMMANDS, "tests"}
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
SOURCES += [ROOT / f"{name}.py" for name in COMMANDS]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
named = {"argvalues": SOURCES, "ids": lambda path: str(path.relative_to(ROOT))}

# The packages of this project that each package may import, besides itself.
ALLOWED = {
    "runtime": set(),
    "model": set(),
    "data": {"runtime"},
    "storage": {"runtime", "model", "data"},
    "interop": {"runtime", "model", "data", "storage"},
    "training": {"runtime", "model", "data", "storage", "interop"},
    "decoding": {"runtime", "model", "data", "storage", "interop"},
    "configs": {"model", "data", "storage"},
    "train": {"runtime", "model", "data", "storage", "interop", "training", "decoding"},
    "decode": {"runtime", "model", "data", "storage", "interop", "decoding"},
    "scripts": OURS - {"tests"},
    "benchmarks": OURS - {"tests"},
    "examples": {"model"},  # they use model/ without the other packages
}


@cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path):
    """Dotted names of all modules imported in a file, also inside functions."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # model/ can be copied under another name
            assert not (package(path) == "model" and node.level == 0 and top(node.module) in OURS)
            assert node.level == 0 or package(path) == "model", f"{path}: imports are absolute"
            names.add(f"model.{node.module}" if node.level else node.module)
            if node.module in FOLDERS:  # from configs import base
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def top(name):
    return name.partition(".")[0]


def package(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_the_sources_are_found():
    assert {package(path) for path in SOURCES} >= {*FOLDERS[:5], *COMMANDS}


@pytest.mark.parametrize("path", **named)
def test_imports_form_a_tree(path):
    ours = {top(name) for name in imports(path)} & OURS
    assert ours <= {package(path)} | ALLOWED[package(path)]


def test_no_module_imports_itself_through_others():
    """Imports inside functions count."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    seen: dict[str, bool] = {}  # module → whether all its imports have been followed

    def follow(module, chain):
        assert seen.get(module, True), f"import cycle: {' → '.join([*chain, module])}"
        if module in seen:
            return
        seen[module] = False
        for name in imports(modules[module]) & set(modules):
            follow(name, [*chain, module])
        seen[module] = True

    for module in modules:
        follow(module, [])


def test_the_model_needs_jax_flax_and_jaxtyping_only():
    for path in (ROOT / "model").glob("*.py"):
        others = {top(name) for name in imports(path)} - set(sys.stdlib_module_names)
        assert others <= {"model", "jax", "flax", "jaxtyping", "numpy"}, path


def test_the_model_is_imported_and_runs_where_nothing_but_jax_flax_and_jaxtyping_is_installed():
    script = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
# The three packages and their own imports (flax imports absl; it does not need optax).
INCLUDED = {"jax", "jaxlib", "flax", "jaxtyping", "numpy", "scipy", "ml_dtypes", "opt_einsum",
            "absl", "msgpack", "rich", "typing_extensions", "yaml", "wadler_lindig", "treescope"}

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        standard = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        allowed = standard or top in INCLUDED | ours
        return super().find_spec(name, path, target) if allowed else None

ours = {"model", "examples"}
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Installed]
import model.attention, model.layers, model.transformer, model.beam_search, model.translate
from examples import attention
print(attention.main() < 1e-5, sorted({name.partition(".")[0] for name in sys.modules} - INCLUDED))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    right, _, loaded = run.stdout.partition(" ")
    assert right == "True"
    loaded = set(ast.literal_eval(loaded)) - set(sys.stdlib_module_names)
    assert {"model", "examples"} <= loaded
    assert not loaded & (OURS - {"model", "examples"})


def test_importing_configuration_starts_no_device_library():
    """Errors of a command line are reported before jax is imported."""
    script = "import sys, storage.config; print('jax' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout == "False\n"


@pytest.mark.parametrize("path", **named)
def test_no_file_executes_its_input(path):
    assert not {top(name) for name in imports(path)} & {"pickle", "cloudpickle", "dill", "marshal"}
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        where = f"{path}:{node.lineno}: {called}"
        assert called not in {"eval", "exec", "os.system", "yaml.load", "torch.load"}, where
        for keyword in node.keywords:
            if keyword.arg in ("shell", "allow_pickle"):
                assert ast.unparse(keyword.value) == "False", where


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=named["ids"])
def test_line_1_describes_the_file(path):
    first = path.read_text(encoding="utf-8").split("\n")[0].removeprefix("r")
    opening = next((mark for mark in ('"""', "#") if first.startswith(mark)), None)
    assert opening and not first.startswith("#!") and len(first.strip('"# ').split()) >= 3
    assert opening == "#" or ast.get_docstring(parse(path))
