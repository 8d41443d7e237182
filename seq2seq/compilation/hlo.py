"""What an optimised HLO text says of a program: bytes, loops, messages between devices.

XLA's own cost analysis counts the body of a loop once. Here it counts as often as it runs if that
number is a constant (stated by the compiler, or the limit that the condition compares a counter
with), otherwise once.
"""

import re
from math import prod
from typing import NamedTuple

SHAPE = re.compile(r"\b(pred|bf16|[usf]\d+)\[([\d,]*)\]")
HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
NAME = re.compile(r"%([\w.\-]+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
LIMIT = re.compile(r"ROOT %[\w.\-]+ = pred\[\]\S* compare\(%[\w.\-]+, %([\w.\-]+)\), direction=LT")
CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
CALLED = {  # operation → the attributes that name the computations it runs
    "while": ("body",),
    "call": ("to_apply",),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
}
MOVES_NOTHING = {
    "parameter", "get-tuple-element", "tuple", "bitcast", "constant", *CALLED,
    "copy-start", "copy-done", "slice-start", "slice-done", "async-start", "async-done",
}  # fmt: skip
REDUCTIONS = ("all-reduce", "all-reduce-start", "reduce-scatter")


class Operation(NamedTuple):
    """An operation that is not inside a fusion."""

    kind: str
    bytes: int  # of its operands and results
    result_bytes: int
    called: tuple[str, ...]  # computations, of which a conditional runs one
    trips: int | None  # of a loop; None: not a constant


class Program:
    """The computations of an optimised HLO text."""

    def __init__(self, text: str):
        self._computations: dict[str, list[Operation]] = {}
        self._entry = ""
        computations: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in text.split("\n"):
            if head := HEAD.match(line):
                lines = []
                if head[1]:
                    self._entry = head[2]
                name = head[2]
            elif line == "}" and lines:
                computations[name] = lines
            else:
                lines.append(line)
        for name, lines in computations.items():
            self._computations[name] = _operations(lines, computations)

    def accessed(self, name: str = "", unknown_trips: int = 1) -> int:
        """The bytes that the operations of a computation (by default all) read and write. Of the
        branches of a conditional the largest counts. A loop whose number of iterations is not a
        constant counts `unknown_trips` times."""
        total = 0
        for operation in self._computations.get(name or self._entry, ()):
            inner = [self.accessed(called, unknown_trips) for called in operation.called]
            trips = operation.trips if operation.kind == "while" else 1
            trips = unknown_trips if trips is None else trips
            total += operation.bytes + trips * max(inner, default=0)
        return total

    def step(self) -> int:
        """`accessed` of one iteration of the loop with the most operations among those whose number
        of iterations is not a constant: the steps of a search. 0 without such a loop. The loops in
        it that encode and load sentences do not count, because most steps do not run them."""
        loops = [
            operation.called[0]
            for operations in self._computations.values()
            for operation in operations
            if operation.kind == "while" and operation.trips is None
        ]
        longest = max(loops, key=lambda name: len(self.operations_of(name)), default=None)
        return self.accessed(longest, unknown_trips=0) if longest else 0

    def all_reduced(self) -> int:
        """The bytes that all devices add up, of one iteration of each loop."""
        return sum(
            operation.result_bytes for operation in self.all() if operation.kind in REDUCTIONS
        )

    def all(self) -> list[Operation]:
        """All operations outside fusions."""
        return [operation for part in self._computations.values() for operation in part]

    def operations_of(self, name: str) -> list[Operation]:
        """The operations of a computation, in its loops and branches too."""
        direct = self._computations.get(name, [])
        called = [inner for operation in direct for inner in operation.called]
        return direct + [operation for inner in called for operation in self.operations_of(inner)]


def shape_bytes(text: str) -> int:
    """The bytes of all arrays in the text of a type."""
    total = 0
    for kind, sizes in SHAPE.findall(text):
        bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
        total += prod(int(n) for n in sizes.split(",") if n) * bits // 8
    return total


def _trips(attributes: str, computations: dict[str, list[str]]) -> int | None:
    """How often a loop runs, if that is a constant. Its counter starts at 0, as those of `scan`."""
    if known := TRIPS.search(attributes):
        return int(known[1])
    condition = CONDITION.search(attributes)
    text = "\n".join(computations.get(condition[1], ())) if condition else ""
    if limit := LIMIT.search(text):
        number = re.search(rf"%{re.escape(limit[1])} = s32\[\]\S* constant\((\d+)\)", text)
        return int(number[1]) if number else None
    return None


def _operations(lines: list[str], computations: dict[str, list[str]]) -> list[Operation]:
    shapes: dict[str, int] = {}
    operations = []
    for line in lines:
        if (match := OPERATION.match(line)) is None:
            continue
        name, result, kind, rest = match.groups()
        shapes[name] = shape_bytes(result)
        operands, _, attributes = rest.partition("), ")
        called = tuple(
            name
            for attribute in CALLED.get(kind, ())
            for found in re.findall(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", attributes)
            for name in re.findall(r"[\w.\-]+", found)
        )
        trips = _trips(attributes, computations) if kind == "while" else None
        size = 0
        if kind not in MOVES_NOTHING:
            size = shapes[name] + sum(shapes.get(x, 0) for x in NAME.findall(operands))
        operations.append(Operation(kind, size, shapes[name], called, trips))
    return operations
