"""The digest of the code that measures an experiment. Results of other code are measured again."""

import ast
import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGE = f"{__package__}."
SUMMARY = ("outcome", "figures")  # modules that only summarise and draw results
JUDGED = ("judge", "draw")  # functions that only summarise and draw results


def source_digest(name: str) -> str:
    """The digest of an experiment's module and of the modules of this folder that it imports."""
    modules, missing = set(), {name}
    while missing:
        modules |= missing
        missing = set().union(*map(imported, missing)) - modules - set(SUMMARY)
    text = "\n".join(measuring_source(module) for module in sorted(modules))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def imported(module: str) -> set[str]:
    """The names of the modules of this folder that a module imports."""
    nodes = ast.walk(ast.parse(read(module)))
    names = (node.module or "" for node in nodes if isinstance(node, ast.ImportFrom))
    return {name.removeprefix(PACKAGE) for name in names if name.startswith(PACKAGE)}


def measuring_source(module: str) -> str:
    """The lines of a module without its docstring, imports, functions of JUDGED and empty lines.

    Imports are left out so that a moved package does not change the digest.
    """
    source = read(module)
    tree = ast.parse(source)
    docstring = tree.body[:1] if ast.get_docstring(tree) is not None else []
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    judged = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in JUDGED
    ]
    skipped: set[int] = set()
    for node in [*docstring, *imports, *judged]:
        skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return "\n".join(line for number, line in lines if line and number not in skipped)


def read(module: str) -> str:
    return (FOLDER / f"{module}.py").read_text(encoding="utf-8")
