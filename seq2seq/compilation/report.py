"""A program compiled for a target: what it needs of a device, and what that bounds."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import jax
from jax.sharding import Sharding
from jax.stages import Traced

from seq2seq.compilation.hlo import REDUCTIONS, Decisions, Exchange, Operation, Program
from seq2seq.compilation.targets import Target

LARGEST = 10  # operations that are listed
EXHAUSTED = "RESOURCE_EXHAUSTED"


class Report(NamedTuple):
    """What a compiled program needs of each device."""

    memory: int  # bytes: arguments, results and temporary arrays
    temporary: int  # bytes
    flops: float  # of products
    accessed: int  # bytes read and written
    step: int  # bytes of a step of a search; 0 if there is none
    exchanged: Counter[Exchange]  # bytes of results, of a step of a search, else of the program
    seconds: float  # of compilation
    kernels: int = 0  # of a step of a search, else of the program
    decisions: Decisions = Decisions(0, 0)  # in it
    largest: tuple[Operation, ...] = ()  # of its operations, by bytes

    def fits(self, target: Target) -> bool:
        return self.memory <= target.hardware.memory

    @property
    def reduced(self) -> int:
        """The bytes that devices add up."""
        return sum(n for exchange, n in self.exchanged.items() if exchange.kind in REDUCTIONS)

    @property
    def gathered(self) -> int:
        """The bytes of all other exchanges between devices."""
        return sum(self.exchanged.values()) - self.reduced

    def bounds(self, target: Target) -> dict[str, float]:
        """The least seconds for each resource, of a step of a search if there is one."""
        hardware, devices = target.hardware, len(target.devices)
        sent = sum(n * exchange.sent(devices) for exchange, n in self.exchanged.items())
        return {
            "products": 0.0 if self.step else self.flops / hardware.flops,
            "memory bandwidth": (self.step or self.accessed) / hardware.bandwidth,
            "interconnect": sent / hardware.interconnect,
        }

    def binding(self, target: Target) -> tuple[str, float]:
        """(the resource that takes longest, its seconds)."""
        return max(self.bounds(target).items(), key=lambda bound: bound[1])


def total_memory(memory: Any) -> int:
    """The bytes that a program needs of each device, from XLA's `memory_analysis`."""
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes
    # Outputs that overwrite inputs count twice.
    return total + memory.temp_size_in_bytes - memory.alias_size_in_bytes


def memory_line(report: Report | None, target: Target) -> str:
    """Whether a program fits; None: the compiler refuses it as too large."""
    limit = target.hardware.memory
    if report is None:
        return f"  memory: does not fit into {limit / 1e9:.1f} GB"
    fits = "fits" if report.fits(target) else "does not fit"
    return (
        f"  memory: {report.memory / 1e9:.3g} of {limit / 1e9:.1f} GB, "
        f"{report.temporary / 1e9:.3g} of it temporary: {fits}; compiled in {report.seconds:.0f} s"
    )


def report_lines(report: Report | None, target: Target) -> Iterator[str]:
    """The lines on memory, work and bounds of a program; None: it does not fit."""
    yield memory_line(report, target)
    if report is None:
        return
    bounds = report.bounds(target)
    binding, seconds = report.binding(target)
    share = bounds["products"] / seconds
    yield (
        f"  work: {report.flops / 1e12:.3g} TFLOP, {report.accessed / 1e9:.3g} GB accessed "
        f"({report.flops / report.accessed:.0f} FLOP/byte), {exchange_text(report)}"
    )
    terms = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in bounds.items())
    yield f"  least time: {terms}: at most {100 * share:.0f} % of the peak, bound by {binding}"
    yield from kernel_lines(report)


def exchange_text(report: Report) -> str:
    """The bytes that a device exchanges with others."""
    gathered = f", {report.gathered / 1e6:.3g} MB gathered" if report.gathered else ""
    return f"{report.reduced / 1e6:.3g} MB reduced{gathered}"


def kernel_lines(report: Report) -> Iterator[str]:
    """The lines on the kernels of a step of a search, or of a program without steps."""
    of = "a step" if report.step else "the program"
    conditionals, loops = report.decisions
    yield (
        f"  {of}: {report.kernels:,} kernels, {conditionals} conditionals and {loops} loops, for "
        "each of which a GPU waits for the host; the largest operations:"
    )
    for operation in report.largest:
        shape, source = operation.shape.split("{")[0], operation.source[-60:]
        yield f"    {operation.bytes / 1e9:.3f} GB {operation.name} {shape} {source}"


def shapes_of(tree: Any, placed: Any) -> Any:
    """The shapes of a tree of arrays, for `trace`, as they are placed by one sharding or by a tree
    of them."""
    if isinstance(placed, Sharding):
        placed = jax.tree.map(lambda _: placed, tree)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, placed
    )


def compiled_report(traced: Traced) -> Report | None:
    """The report of a function that was traced for arguments whose shardings name the devices; None
    if it needs more memory than they have."""
    lowered, started = traced.lower(), time.perf_counter()
    try:
        compiled = lowered.compile()
    except Exception as error:
        if EXHAUSTED in str(error):
            return None
        raise
    seconds = time.perf_counter() - started
    devices = jax.tree.leaves(compiled.input_shardings)[0].num_devices
    memory, optimised = compiled.memory_analysis(), Program(compiled.as_text())
    step = optimised.step()
    run = [*optimised.run(step, unknown_trips=0 if step else 1)]
    kernels = [(part, times) for part, times in run if part.is_kernel]
    largest = [part for part, times in kernels for _ in range(min(times, LARGEST))]
    return Report(
        total_memory(memory),
        memory.temp_size_in_bytes,
        product_flops(traced.jaxpr) / devices,
        optimised.accessed(),
        sum(times * part.bytes for part, times in kernels) if step else 0,
        optimised.exchanged(step, unknown_trips=0 if step else 1),
        seconds,
        sum(times for _, times in kernels),
        optimised.decisions(step),
        tuple(sorted(largest, key=lambda part: -part.bytes)[:LARGEST]),
    )


def largest_that_fits(
    report_of: Callable[[int], Report | None], size: int, report: Report | None, target: Target
) -> int:
    """The largest size whose program fits into the memory of the target, within a tenth; 0 if there
    is none. `report` is that of `size`.

    Memory is nearly linear in the size, so two known sizes predict the next one to try, which is at
    most 8 times the largest that fits.
    """
    limit = target.hardware.memory
    known: dict[int, int] = {}  # size → memory
    fits, exceeds = 0, 0  # 0: no size that exceeds is known
    while True:
        if report is not None:
            known[size] = report.memory
        if report is not None and report.fits(target):
            fits = max(fits, size)
        else:
            exceeds = min(exceeds or size, size)
        if exceeds and exceeds - fits <= max(1, fits // 10):
            return fits
        size = (fits + exceeds) // 2 if exceeds else 2 * fits
        if len(known) > 1:
            (a, used_a), (b, used_b) = sorted(known.items())[-2:]
            predicted = b + int((limit - used_b) / max(1, used_b - used_a) * (b - a))
            predicted = min(max(predicted, fits + max(1, fits // 10)), 8 * max(1, fits))
            size = predicted if not exceeds or predicted < exceeds else size
        report = report_of(size)


def first_that_fits(
    report_of: Callable[[int], Report | None], choices: Iterable[int], target: Target
) -> int:
    """The first of these choices whose program fits into the memory of the target, 0 if there is
    none."""
    reports = ((choice, report_of(choice)) for choice in choices)
    return next((choice for choice, report in reports if report and report.fits(target)), 0)


def product_flops(jaxpr: Any) -> float:
    """2 for each multiplication of the matrix products of a jaxpr, on all devices. A loop without
    a constant number of iterations counts once, of the branches of a conditional the largest."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (axes, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            contracted = 1
            for axis in axes:
                contracted *= shape[axis]
            total += 2.0 * equation.outvars[0].aval.size * contracted
            continue
        inner = [product_flops(part) for part in jaxprs_in(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inner, default=0.0)
        elif equation.primitive.name == "shard_map":  # inside are the shapes of one device
            sizes, axes = equation.params["mesh"].shape, equation.params["newly_manual_axes"]
            total += prod(sizes[axis] for axis in axes) * sum(inner)
        else:
            total += equation.params.get("length", 1) * sum(inner)
    return total


def jaxprs_in(parameters: dict[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an equation."""
    values: list[Any] = []
    for value in parameters.values():
        values += value if isinstance(value, tuple | list) else [value]
    opened = [getattr(value, "jaxpr", value) for value in values]
    return [value for value in opened if hasattr(value, "eqns")]
