"""Part: operations and bytes of a decode step in the search program lowered for cuda.

It needs no accelerator and runs nothing, so that two commits can be compared anywhere. The counts
are those of StableHLO, before XLA fuses operations.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.parts.counts import step_bytes
from benchmarks.parts.decoding import DTYPE, search_program
from benchmarks.parts.sizes import Sizes
from seq2seq.model.search.translate import Request
from seq2seq.training.parameters import parameter_shapes

NO_WORK = {"constant", "return", "iota", "reshape", "broadcast_in_dim"}
BRANCHES = {"case", "if", "while"}  # a loop in a step encodes and loads sentences
MOVES = {"gather", "scatter", "dynamic_slice", "dynamic_update_slice", "concatenate", "pad"}


class Operations(NamedTuple):
    """Operations of a region, each with its name and the bytes of its operands."""

    always: list[tuple[str, int]]
    branches: list[tuple[str, int]]  # within conditionals and loops


def operations_rows(
    sizes: Sizes, deadline: float, size: str, beams: int
) -> Iterator[dict[str, Any]]:
    """One row: the body of the search loop, with the lanes of the smallest batch."""
    config = replace(sizes.decoding[size], dtype=DTYPE)
    lanes = sizes.hypotheses[0] // beams
    sentences = lanes * sizes.queue
    numbers = jax.ShapeDtypeStruct((sentences,), np.int32)
    source = jax.ShapeDtypeStruct((sentences, sizes.source_length), np.int32)
    request = Request(source, numbers, numbers, min_lengths=numbers)
    program = search_program(config, beams, sizes.max_length, lanes)
    traced = program.trace({"params": parameter_shapes(config)}, request)
    always, branches = search_loop(traced.lower(lowering_platforms=("cuda",)))
    names = [name for name, _ in always]
    yield {
        "size": size, "dtype": DTYPE, "beams": beams, "batch": lanes, "operations": len(always),
        "products": names.count("dot_general"), "moves": sum(name in MOVES for name in names),
        "in_branches": len(branches),
        "product_bytes": sum(count for name, count in always if name == "dot_general"),
        "convert_bytes": sum(count for name, count in always if name == "convert"),
        "must_read": sum(
            step_bytes(config, lanes, beams, sizes.source_length, sizes.output_length / 2)
        ),
    }  # fmt: skip


def search_loop(lowered: jax.stages.Lowered) -> Operations:
    """The operations of the body of the loop with the most operations: that of the search."""
    module = lowered.compiler_ir("stablehlo")
    functions = {str(function.name).strip('"'): function for function in module.body.operations}
    loops = [body for function in functions.values() for body in loop_bodies(function.operation)]
    counted = [counted_operations(body, functions) for body in loops]
    return max(counted, key=lambda operations: len(operations.always))


def loop_bodies(operation: Any) -> Iterator[Any]:
    """The body regions of all loops inside an operation."""
    if operation.name == "stablehlo.while":
        yield operation.regions[1]
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from loop_bodies(inner.operation)


def counted_operations(region: Any, functions: dict[str, Any]) -> Operations:
    """The operations of a region, of the loops and branches in it and the functions it calls.

    NO_WORK is not counted, nor are the regions of reductions and sorts.
    """
    operations = Operations([], [])
    for block in region:
        for statement in block:
            operation = statement.operation
            name = operation.name.rpartition(".")[2]
            regions = list(operation.regions) if name in BRANCHES else []
            if name == "call":
                callee = str(operation.attributes["callee"]).strip('@"')
                regions = list(functions[callee].operation.regions)
            elif name not in NO_WORK:
                operations.always.append((name, operand_bytes(operation)))
            for inner in (counted_operations(part, functions) for part in regions):
                kept = operations.branches if name in BRANCHES else operations.always
                kept.extend(inner.always)
                operations.branches.extend(inner.branches)
    return operations


def operand_bytes(operation: Any) -> int:
    return sum(type_bytes(str(operand.type)) for operand in operation.operands)


def type_bytes(text: str) -> int:
    """The bytes of a tensor type, such as tensor<3x4xbf16>."""
    *shape, element = text.removeprefix("tensor<").removesuffix(">").split("x")
    bits = 8 if element == "i1" else int(element.lstrip("uifb"))
    return int(np.prod([int(n) for n in shape], dtype=np.int64)) * bits // 8
