"""The source tree: allowed imports, descriptions in line 1, no unsafe calls."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# In seq2seq/.
PACKAGES = (
    "runtime", "files", "cli", "compilation", "config", "data", "storage", "pretrained", "training",
    "decoding",
)  # fmt: skip
LINKED = ("model", "configs", "scripts")  # in seq2seq/ too, as links to the top level
COMMANDS = ("train", "decode")
OURS = {"seq2seq", *PACKAGES, *LINKED, *COMMANDS, "benchmarks", "examples", "tests"}
FOLDERS = [*(f"seq2seq/{name}" for name in PACKAGES), *LINKED, "benchmarks", "examples"]
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
SOURCES += [ROOT / f"{name}.py" for name in (*COMMANDS, "seq2seq/__init__")]
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# The packages of this project that each package may import, besides itself.
ALLOWED = {
    "runtime": set(),
    "model": set(),
    "files": {"runtime"},
    "cli": {"runtime", "files"},
    "compilation": {"runtime", "cli"},
    "config": {"runtime", "files", "cli", "model"},
    "data": {"runtime", "files", "cli", "config", "model"},
    "storage": {"runtime", "files", "config", "data", "model"},
    "pretrained": {"runtime", "files", "config", "data", "storage", "model"},
    "training": {*PACKAGES, "model"} - {"decoding"},
    "decoding": {*PACKAGES, "model"} - {"training"},
    "configs": {"config", "data"},
    "train": {*PACKAGES, "model"},
    "decode": {*PACKAGES, "model"} - {"training"},
    "seq2seq": {"decoding"},  # seq2seq/__init__.py, which has the Translator
    "scripts": OURS - {"tests"},
    "benchmarks": OURS - {"tests"},
    "examples": {"model"},  # they use model/ without the other packages
}

# The folders and modules of a package from left to right; "" are the other modules. A module
# imports those of its own place and of the places to its left.
ORDERED_FOLDERS = {
    "model": ("", "search"),
    "data": ("", "korean", "corpora", "tokenizers", "tokens", "batching"),
    "decoding": ("results", "search_options", "engine", "", "command"),
}


@cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports(path):
    """Dotted names of all modules imported in a file, also inside functions."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # model/ can be copied under another name
            assert node.level == 0 or package(path) == "model", f"{path}: imports are absolute"
            assert node.level or package(path) != "model" or top(node.module) != "seq2seq", path
            module = node.module
            if node.level:
                parents = module_of(path).split(".")[: -node.level]
                module = ".".join(filter(None, (*parents, node.module)))
            # from seq2seq.configs import base: a module or a name in one
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def top(name):
    return name.partition(".")[0]


def module_of(path):
    """The name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in (*LINKED, *COMMANDS):
        parts = ("seq2seq", *parts)
    return ".".join(parts).removesuffix(".__init__")


def package_of(name):
    """The package of a module of ours; None for a library."""
    first, _, rest = name.partition(".")
    if first in ("benchmarks", "examples", "tests"):
        return first
    return (top(rest) if top(rest) in OURS else "seq2seq") if first == "seq2seq" else None


def package(path):
    return package_of(module_of(path))


def test_the_sources_are_found():
    assert {package(path) for path in SOURCES} >= {*PACKAGES, *LINKED, *COMMANDS}


def test_each_module_has_one_name():
    """In seq2seq; `import model` in a clone would make a second copy of each class."""
    for path in SOURCES + TESTS:
        twice = {top(name) for name in imports(path)} & {*PACKAGES, *LINKED, *COMMANDS}
        assert not twice, f"{path}: import seq2seq.{min(twice)}"
    for name in (*LINKED, *(f"{name}.py" for name in COMMANDS)):
        assert (ROOT / "seq2seq" / name).samefile(ROOT / name)


def test_imports_form_a_tree():
    for path in SOURCES:
        ours = {package_of(name) for name in imports(path)} - {None}
        assert ours <= {package(path)} | ALLOWED[package(path)], path


def test_the_data_uses_nothing_of_the_model_but_options_and_the_target_shift():
    names = {name for path in SOURCES if package(path) == "data" for name in imports(path)}
    of_model = {".".join(name.split(".")[:3]) for name in names if package_of(name) == "model"}
    assert of_model == {"seq2seq.model.options", "seq2seq.model.target_shift"}


@pytest.mark.parametrize("name", ORDERED_FOLDERS)
def test_the_folders_of_a_package_import_in_one_direction(name):
    order = ORDERED_FOLDERS[name]
    place = {}  # of each module in the order
    for path in (ROOT / "seq2seq" / name).rglob("*.py"):
        first = path.relative_to(ROOT / "seq2seq" / name).with_suffix("").parts[0]
        place[module_of(path)] = order.index(first if first in order else "")
    assert set(place.values()) == set(range(len(order)))
    for path in SOURCES:
        for imported in imports(path) & set(place) if module_of(path) in place else ():
            here, there = place[module_of(path)], place[imported]
            assert there <= here, f"{path} imports {imported}: {order[there]} is right of it"


def test_no_module_imports_itself_through_others():
    """Imports inside functions count."""
    modules = {module_of(path): path for path in SOURCES}
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
        packages = {top(name) for name in imports(path)} - set(sys.stdlib_module_names)
        assert packages <= {"seq2seq", "jax", "flax", "jaxtyping", "numpy"}, path


def test_importing_configuration_starts_no_device_library():
    """Errors of a command line are reported before jax is imported."""
    script = "import sys, seq2seq.config.tree; print('jax' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout == "False\n"


def test_no_file_executes_its_input():
    for path in SOURCES:
        unsafe = {"pickle", "cloudpickle", "dill", "marshal"}
        assert not {top(name) for name in imports(path)} & unsafe, path
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            where = f"{path}:{node.lineno}: {called}"
            assert called not in {"eval", "exec", "os.system", "yaml.load", "torch.load"}, where
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle"):
                    assert ast.unparse(keyword.value) == "False", where


def test_line_1_describes_the_file():
    for path in SOURCES + TESTS:
        first = path.read_text(encoding="utf-8").split("\n")[0].removeprefix("r")
        opening = next((mark for mark in ('"""', "#") if first.startswith(mark)), None)
        assert opening and not first.startswith("#!"), path
        assert len(first.strip('"# ').split()) >= 3, path
        assert opening == "#" or ast.get_docstring(parse(path)), path
