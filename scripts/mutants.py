"""Mutants of Python source: one constant, comparison, operator or argument is changed.

Not mutated, because no test should depend on them: docstrings, annotations, f-strings, messages,
help and log lines, assertions, `__all__`, the `__main__` guard, and the arguments `strict=` of zip
(an assertion) and `encoding=` (the default on the tested platforms is the same).
"""

import ast
import random
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
KINDS = {ast.Constant: "constant", ast.Compare: "comparison", ast.Call: "argument"}
# Calls that print or log, and error classes: their strings are messages.
WRITES = re.compile(r"(print|log|note|warn|warning|progress|info|exit|DEFINE_\w+|\w*Error)$")
UNTESTED_KEYWORDS = {"strict", "encoding", "help", "file", "flush"}
# A string of one character, or a name, path or format; longer strings with spaces are messages.
SHORT_STRING = re.compile(r"(?s).|[\w.\-/+]{0,24}")


class Mutant(NamedTuple):
    """A change of one expression."""

    kind: str  # constant, comparison, operator or argument
    path: str
    line: int
    code: str  # the source line and "@column"
    original: str
    mutated: str
    start: int  # offsets of the expression in the file, in characters
    end: int

    @property
    def key(self) -> tuple[str, ...]:
        """The identity of the mutant; it stays the same when the line moves."""
        return self.path, self.code, self.original, self.mutated

    def apply(self, source: str) -> str:
        """The mutated source of the file."""
        return source[: self.start] + self.mutated + source[self.end :]


def mutants(path: str, source: str) -> list[list[Mutant]]:
    """All mutants of a file: a list for each expression with all changes of it."""
    lines = source.split("\n")
    content, starts = source.encode(), [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()) + 1)

    def offset(line: int, column: int) -> int:  # ast counts columns in bytes
        return len(content[: starts[line - 1] + column].decode())

    found = []
    for node in _expressions(ast.parse(source)):
        start = offset(node.lineno, node.col_offset)
        end = offset(node.end_lineno, node.end_col_offset)
        changes = [_text(changed) for changed in _changes(node)]
        original = " ".join(source[start:end].split())
        code = f"{lines[node.lineno - 1].strip()} @{node.col_offset}"
        kind = KINDS.get(type(node), "operator")
        found.append(
            [
                Mutant(kind, path, node.lineno, code, original, text, start, end)
                for text in changes
                if text is not None
            ]
        )
    return [each for each in found if each]


def draw(
    sources: dict[str, str],
    count: int,
    seed: int,
    weight: Callable[[str], float] = lambda path: 1.0,
) -> list[Mutant]:
    """`count` mutants, spread over the files in proportion to weight × number of expressions.

    Each file has at least one if `count` allows it. Within a file the kinds alternate; otherwise
    most mutants would be constants. The draw of a file depends on the other files only through its
    number of mutants.
    """
    sites = {path: mutants(path, source) for path, source in sorted(sources.items())}
    sites = {path: found for path, found in sites.items() if found}
    order = list(sites)
    random.Random(seed).shuffle(order)
    taken = dict.fromkeys(order[:count], 1)
    while sum(taken.values()) < min(count, sum(map(len, sites.values()))):
        open_files = [path for path in taken if taken[path] < len(sites[path])]
        most = max(open_files, key=lambda p: weight(p) * len(sites[p]) / (2 * taken[p] + 1))
        taken[most] += 1
    drawn = []
    for path, number in taken.items():
        choose = random.Random(f"{seed}:{path}")
        choose.shuffle(sites[path])
        by_kind = [
            [each for each in sites[path] if each[0].kind == kind]
            for kind in choose.sample(sorted({*KINDS.values(), "operator"}), 4)
        ]
        turns = [each for turn in zip_longest(*by_kind) for each in turn if each]
        drawn += [choose.choice(each) for each in turns[:number]]
    return drawn


def source_files(root: Path) -> dict[str, str]:
    """Path → source of the commands and their packages."""
    packages = ("model", "data", "training", "decoding", "storage", "interop", "runtime")
    paths = [root / "train.py", root / "decode.py"]
    paths += [path for folder in packages for path in (root / folder).rglob("*.py")]
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if path.is_file()
    }


def _expressions(node: ast.AST, in_text: bool = False) -> Iterator[ast.AST]:
    """The expressions and statements below a node that may be mutated.

    With `in_text` the node is part of a message, so its strings are not mutated.
    """
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    if hasattr(node, "end_lineno") and not (in_text and is_string):
        yield node
    writes = isinstance(node, ast.Call) and bool(WRITES.search(ast.unparse(node.func)))
    for child in _children(node):
        yield from _expressions(child, in_text or writes)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The child nodes, without annotations, messages and assertions."""
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.arg | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Subscript) and _is_shape(node):
        return
    skipped = {getattr(node, name, None) for name in ("annotation", "returns")}
    for child in ast.iter_child_nodes(node):
        untested = isinstance(child, ast.keyword) and child.arg in UNTESTED_KEYWORDS
        if child not in skipped and not untested:
            yield child


def _is_shape(node: ast.Subscript) -> bool:
    """Whether it is a jaxtyping annotation, Float[Array, "B T"], in an expression."""
    return bool(re.match(r"(Float|Int|UInt|Bool|Shaped|Num)\[", ast.unparse(node)))


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """All mutations of a node."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from map(
                ast.Constant, (value * 2, value // 2) if value > 16 else (value + 1, value - 1)
            )
        case ast.Constant(value=float(value)):
            yield from map(ast.Constant, (value * 2, value / 2) if value else (1.0,))
        case ast.Constant(value=str(value)) if SHORT_STRING.fullmatch(value):
            yield ast.Constant(value + "_")
        case ast.Compare():
            for i, one in enumerate(node.ops):
                changed = deepcopy(node)
                changed.ops[i] = COMPARISONS[type(one)]()
                yield changed
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            if not _joins_text(node):
                changed = deepcopy(node)
                changed.op = OPERATORS[type(node.op)]()
                yield changed
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Call() if not re.search(r"(print|log|DEFINE_\w+)$", ast.unparse(node.func)):
            yield from _argument_changes(node)


def _joins_text(node: ast.AST) -> bool:
    """Whether an operand of + or % is a string."""
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case ast.BinOp():
            return _joins_text(node.left) or _joins_text(node.right)
        case ast.AugAssign():
            return _joins_text(node.value)
        case ast.IfExp():
            return _joins_text(node.body)
    return False


def _argument_changes(call: ast.Call) -> Iterator[ast.Call]:
    """The call with two adjacent positional arguments swapped, or without one keyword."""
    symmetric = ast.unparse(call.func) in ("min", "max", "jnp.minimum", "jnp.maximum")
    swappable = [] if symmetric else zip(call.args, call.args[1:], strict=False)
    for i, (one, other) in enumerate(swappable):
        starred = isinstance(one, ast.Starred) or isinstance(other, ast.Starred)
        if not starred and ast.dump(one) != ast.dump(other):
            changed = deepcopy(call)
            changed.args[i : i + 2] = deepcopy([other, one])
            yield changed
    for i, keyword in enumerate(call.keywords):
        if keyword.arg and keyword.arg not in UNTESTED_KEYWORDS:
            changed = deepcopy(call)
            del changed.keywords[i]
            yield changed


def _text(node: ast.AST) -> str | None:
    """The source of a changed node; None if Python 3.11 cannot unparse its f-strings."""
    try:
        text = ast.unparse(node)
    except ValueError:
        return None
    return text if isinstance(node, ast.stmt) else f"({text})"
