"""The digest of the code that measures an experiment. Results of other code are measured again."""

import ast
import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGE = "scripts.experiments."
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
    """The lines of a module without its docstring and without the functions of JUDGED."""
    lines, tree = read(module).splitlines(), ast.parse(read(module))
    skipped = [
        node
        for place, node in enumerate(tree.body)
        if (place == 0 and ast.get_docstring(tree) is not None)
        or (isinstance(node, ast.FunctionDef) and node.name in JUDGED)
    ]
    for node in reversed(skipped):
        del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines)


def read(module: str) -> str:
    return (FOLDER / f"{module}.py").read_text(encoding="utf-8")
