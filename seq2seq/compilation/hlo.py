"""What an optimised HLO text says of a program: kernels, bytes, loops, exchanges between devices.

XLA's own cost analysis counts the body of a loop once. Here it counts as often as it runs if that
number is a constant (stated by the compiler, or the limit that the condition compares a counter
with), otherwise once. It also counts the whole operand of a gather, and of an update in place.
"""

import re
from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

SHAPE = re.compile(r"\b(pred|bf16|[usf]\d+)\[([\d,]*)\]")
HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
OPERATION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
NAME = re.compile(r"%([\w.\-]+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
NAMES = r"\{[^}]*\}|%?[\w.\-]+"  # a computation or several
FUSED = re.compile(r"\bcalls=%?([\w.\-]+)")
SOURCE = re.compile(r'op_name="([^"]+)"')
CALLED = {  # operation → the attributes that name the computations it runs
    "while": ("body",),
    "call": ("to_apply",),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
}
# An exchange → the bytes that each of n devices sends around a ring, for a byte of its result.
SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
}
REDUCTIONS = ("all-reduce", "reduce-scatter")
WITH_OPERANDS = {f"{kind}-start" for kind in SENT} - {"all-reduce-start"}  # in their results
MOVES_NOTHING = {
    "parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "partition-id",
    "copy-start", "copy-done", "slice-start", "slice-done", "async-start", "async-done",
    *(f"{kind}-done" for kind in SENT), *CALLED,
}  # fmt: skip
# The devices of an exchange: {{0,1},{2,3}}, [groups,devices]<=[…], or mesh['x'=2,'y'=2] {'y'}.
GROUPS = re.compile(
    r"\breplica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\]|mesh\[([^\]]*)\] ?\{([^}]*)\})"
)
AXIS_SIZE = re.compile(r"'(\w+)'=(\d+)")
AXIS_PART = re.compile(r"'(\w+)'(?::\(\d+\)(\d+))?")
# They read as much of their first operand as they return.
PART_READERS = ("gather", "dynamic-slice", "slice")


class Line(NamedTuple):
    """A line of the text."""

    name: str
    shape: str
    kind: str
    operands: tuple[str, ...]
    attributes: str
    root: bool


class Exchange(NamedTuple):
    """A kind of messages between devices that wait for each other."""

    kind: str  # of SENT
    devices: int  # that exchange; 0: all

    def sent(self, devices: int) -> float:
        """The bytes that each of all `devices` sends for a byte of its result."""
        return SENT[self.kind](self.devices or devices)


class Operation(NamedTuple):
    """An operation that is not inside a fusion."""

    kind: str
    name: str
    shape: str  # of the result
    source: str  # the functions that made it, as JAX names them
    bytes: int  # that it reads and writes
    exchanges: tuple[tuple[Exchange, int], ...]  # and the bytes of the result
    called: tuple[str, ...]  # computations, of which a conditional runs one
    trips: int | None  # of a loop; None: not a constant

    @property
    def is_kernel(self) -> bool:
        """Whether a device does something for it."""
        return self.kind not in MOVES_NOTHING


class Decisions(NamedTuple):
    """What decides how a program continues; on a GPU the host waits for each of them."""

    conditionals: int
    loops: int  # without a constant number of iterations


class Program:
    """The computations of an optimised HLO text."""

    def __init__(self, text: str):
        self._lines: dict[str, list[Line]] = {}
        self._entry = name = ""
        for text_line in text.split("\n"):
            if head := HEAD.match(text_line):
                name = head[2]
                self._lines[name] = []
                self._entry = name if head[1] else self._entry
            elif name and (found := OPERATION.match(text_line)):
                root, result, shape, kind, rest = found.groups()
                operands, _, attributes = rest.partition("), ")
                names = tuple(NAME.findall(operands))
                if kind in ("parameter", "constant"):
                    attributes = rest
                self._lines[name].append(Line(result, shape, kind, names, attributes, bool(root)))
        self._computations = {name: self._operations(name) for name in self._lines}

    def accessed(self, name: str = "", unknown_trips: int = 1) -> int:
        """The bytes that the operations of a computation (by default all) read and write. Of the
        branches of a conditional the largest counts. A loop whose number of iterations is not a
        constant counts `unknown_trips` times."""
        return sum(times * part.bytes for part, times in self.run(name, unknown_trips))

    def run(
        self, name: str = "", unknown_trips: int = 1, times: int = 1
    ) -> Iterator[tuple[Operation, int]]:
        """The operations of a computation (by default all), and how often each one runs
        (`accessed`) if the computation runs so many `times`."""
        for operation in self._computations.get(name or self._entry, ()):
            yield operation, times
            if operation.kind == "while":
                trips = unknown_trips if operation.trips is None else operation.trips
                if trips:
                    yield from self.run(operation.called[0], unknown_trips, times * trips)
            elif operation.called:
                runs = [[*self.run(called, unknown_trips, times)] for called in operation.called]
                yield from max(runs, key=lambda run: sum(n * part.bytes for part, n in run))

    def step(self) -> str:
        """The computation that is the body of the loop with the most operations among those whose
        number of iterations is not a constant: a step of a search. Empty without such a loop.

        The loops in it that encode and load sentences do not run in most steps: `run` and
        `accessed` leave them out with 0 `unknown_trips`.
        """
        loops = [
            operation.called[0]
            for operations in self._computations.values()
            for operation in operations
            if operation.kind == "while" and operation.trips is None
        ]
        return max(loops, key=lambda name: len(self.operations_of(name)), default="")

    def decisions(self, name: str = "") -> Decisions:
        """The conditionals and loops in a computation (by default all) that run once in it."""
        conditionals = loops = 0
        for operation, times in self.run(name, unknown_trips=0):
            if operation.kind == "conditional":
                conditionals += times
            elif operation.kind == "while" and operation.trips is None:
                loops += times
        return Decisions(conditionals, loops)

    def exchanged(self, name: str = "", unknown_trips: int = 1) -> Counter[Exchange]:
        """The bytes that a device receives of each kind of exchange in a computation (`accessed`):
        those of the results."""
        received: Counter[Exchange] = Counter()
        for operation, times in self.run(name, unknown_trips):
            for exchange, size in operation.exchanges:
                received[exchange] += times * size
        return received

    def all(self) -> list[Operation]:
        """All operations outside fusions."""
        return [operation for part in self._computations.values() for operation in part]

    def operations_of(self, name: str) -> list[Operation]:
        """The operations of a computation, in its loops and branches too."""
        direct = self._computations.get(name, [])
        called = [inner for operation in direct for inner in operation.called]
        return direct + [operation for inner in called for operation in self.operations_of(inner)]

    def _operations(self, name: str) -> list[Operation]:
        shapes = result_bytes(self._lines[name])
        operations = []
        for line in self._lines[name]:
            called = tuple(
                name
                for attribute in CALLED.get(line.kind, ())
                for names in re.findall(rf"\b{attribute}=({NAMES})", line.attributes)
                for name in re.findall(r"[\w.\-]+", names)
            )
            trips = self._trips(line.attributes) if line.kind == "while" else None
            size = 0 if line.kind in MOVES_NOTHING else self._bytes(line, shapes)
            source = SOURCE.search(line.attributes)
            operations.append(
                Operation(
                    line.kind,
                    line.name,
                    line.shape,
                    source[1] if source else "",
                    size,
                    tuple(self._exchanges(line, shapes)),
                    called,
                    trips,
                )  # fmt: skip
            )
        return operations

    def _exchanges(self, line: Line, shapes: dict[str, int]) -> Iterator[tuple[Exchange, int]]:
        """The exchanges of an operation, such as a fusion with one in it."""
        kind = line.kind.removesuffix("-start")
        if kind in SENT:
            yield Exchange(kind, group_size(line.attributes)), shapes[line.name]
        elif fused := FUSED.search(line.attributes):
            inner = self._lines.get(fused[1], [])
            for part in inner:
                yield from self._exchanges(part, result_bytes(inner))

    def _bytes(self, line: Line, shapes: dict[str, int]) -> int:
        """The bytes that an operation outside fusions reads and writes."""
        sizes = [shapes.get(operand, 0) for operand in line.operands]
        fused = FUSED.search(line.attributes) if line.kind == "fusion" else None
        inner = self._lines.get(fused[1], []) if fused else []
        if not inner:
            reads, written = _part_bytes(line.kind, sizes, shapes[line.name])
            return sum(reads) + written
        inside = {part.name: part for part in inner}
        inner_shapes = result_bytes(inner)
        read = 0
        for part in inner:
            if part.kind == "parameter":
                number = int(re.match(r"\d+", part.attributes)[0])  # type: ignore[index]
                read += _bytes_read(part.name, sizes[number], inner, inner_shapes)
        (root,) = (part for part in inner if part.root)
        return read + _bytes_written(root, inside, inner_shapes)

    def _trips(self, attributes: str) -> int | None:
        """How often a loop runs, if that is a constant. Its counter starts at 0, as those of
        `scan`."""
        if known := TRIPS.search(attributes):
            return int(known[1])
        condition = CONDITION.search(attributes)
        lines = self._lines.get(condition[1], []) if condition else []
        for root in lines:
            if root.root and root.kind == "compare" and "direction=LT" in root.attributes:
                for line in lines:
                    if line.name == root.operands[1] and line.shape.startswith("s32[]"):
                        number = re.match(r"\d+", line.attributes)  # of a constant
                        return int(number[0]) if number else None
        return None


def _part_bytes(kind: str, sizes: list[int], result: int) -> tuple[list[int], int]:
    """(bytes read of each operand, bytes written) of an operation. An update in place writes its
    updates, and reads nothing of the array that it changes; a gather reads what it returns."""
    if kind in PART_READERS:
        return [min(sizes[0], result), *sizes[1:]], result
    if kind == "dynamic-update-slice":
        return [0, *sizes[1:]], sizes[1]
    if kind == "scatter":
        arrays = len(sizes) // 2  # then the indices, then as many updates
        return [0] * arrays + sizes[arrays:], sum(sizes[arrays + 1 :])
    return sizes, result


def _bytes_read(name: str, size: int, inner: list[Line], shapes: dict[str, int]) -> int:
    """The bytes that the operations of a fusion read of its parameter `name`."""
    read = 0
    for line in inner:
        operands = [shapes.get(operand, 0) for operand in line.operands]
        parts, _ = _part_bytes(line.kind, operands, shapes[line.name])
        for operand, part in zip(line.operands, parts, strict=True):
            if operand == name:
                whole = line.kind in ("bitcast", "copy", "convert")
                read += _bytes_read(line.name, size, inner, shapes) if whole else part
    return min(read, size)


def _bytes_written(root: Line, inside: dict[str, Line], shapes: dict[str, int]) -> int:
    """The bytes that a fusion with this root writes."""
    if root.kind in ("tuple", "bitcast"):
        return sum(
            _bytes_written(inside[operand], inside, shapes)
            for operand in root.operands
            if operand in inside
        )
    operands = [shapes.get(operand, 0) for operand in root.operands]
    return _part_bytes(root.kind, operands, shapes[root.name])[1]


def group_size(attributes: str) -> int:
    """How many devices take part in each exchange of an operation; 0: all."""
    groups = GROUPS.search(attributes)
    if groups is None:
        return 0
    first, size, axes, exchanging = groups.groups()
    if first:
        return first.count(",") + 1
    if size:
        return int(size)
    sizes = dict(AXIS_SIZE.findall(axes))
    return prod(int(part or sizes[axis]) for axis, part in AXIS_PART.findall(exchanging))


def result_bytes(lines: list[Line]) -> dict[str, int]:
    """The bytes of the results of the operations of a computation."""
    sizes: dict[str, int] = {}
    for line in lines:
        operands = line.operands if line.kind in WITH_OPERANDS else ()
        sizes[line.name] = shape_bytes(line.shape) - sum(sizes.get(name, 0) for name in operands)
    return sizes


def shape_bytes(text: str) -> int:
    """The bytes of all arrays in the text of a type."""
    total = 0
    for kind, sizes in SHAPE.findall(text):
        bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
        total += prod(int(n) for n in sizes.split(",") if n) * bits // 8
    return total
