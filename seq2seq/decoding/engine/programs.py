"""The compiled programs of the engine: encode and search in one graph, for each kind of search.

Numbers that do not change the graph (VALUES) are arguments of a program, so that a new value needs
no compilation. All engines of a process share the programs; the least recently used one is released
when there are more than PROGRAMS.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.mesh import AXIS, local_mesh
from seq2seq.model.placement import MODEL
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.translate import Request, translate

PROGRAMS = 32  # kept: enough for four sets of options with eight buckets each
VALUES = "alpha", "temperature", "top_p", "repetition_penalty", "seed", "weights"


class Program(NamedTuple):
    """The key of a compiled program."""

    models: tuple[EncoderDecoder, ...]
    options: SearchOptions  # the static ones of `split`
    bucket: int  # source tokens
    lanes: int  # sentences searched at once
    model_parallel: int = 1  # devices of a copy of the models


def split(options: SearchOptions) -> tuple[SearchOptions, dict[str, Any]]:
    """The static options, in which VALUES are None, and these values by name. A `top_p` or
    `repetition_penalty` of 1 disables its rule: it is static, so that the rule is not compiled."""
    disabled = [name for name in ("top_p", "repetition_penalty") if getattr(options, name) == 1.0]
    values: dict[str, Any] = {
        name: getattr(options, name) for name in VALUES if name not in disabled
    }
    nothing: dict[str, Any] = dict.fromkeys(values)
    return options._replace(**nothing), values


def graph(program: Program) -> Callable[..., Hypotheses]:
    """(variables, request, values) → Hypotheses, on one device."""

    def run(variables: Sequence[Any], request: Request, values: dict[str, Any]) -> Hypotheses:
        models = list(zip(program.models, variables, strict=True))
        return translate(models, request, program.options._replace(**values), program.lanes)

    return run


@lru_cache(PROGRAMS)
def compiled(program: Program) -> jax.stages.Wrapped:
    """`graph` on all local copies of the models; requests have a leading axis of copies."""
    return on_copies(graph(program), (None, 0, None), local_mesh(program.model_parallel))


def on_copies(
    function: Callable[..., Any], in_axes: tuple[int | None, ...], mesh: Mesh
) -> jax.stages.Wrapped:
    """`jax.pmap(function, in_axes=in_axes)` for axes 0 and None, on the devices of a mesh. XLA
    divides `function` among the devices of a copy as its arguments are placed.

    Decoding does not use the helper of training and evaluation (seq2seq/training/parallel.py): pmap
    never releases a compiled program, of which decoding has one for each bucket and set of options,
    and the devices of several processes would wait for each other, although each decodes its own
    lines.
    """
    specs = tuple(P() if axis is None else P(AXIS) for axis in in_axes)

    def run(*arguments: Any) -> Any:
        local = [
            tree if axis is None else jax.tree.map(lambda x: x[0], tree)
            for tree, axis in zip(arguments, in_axes, strict=True)
        ]
        return jax.tree.map(lambda x: x[None], function(*local))

    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=specs, out_specs=P(AXIS), axis_names={AXIS}, check_vma=False
    )
    # On several devices of a copy, parameters are divided: they are used where they lie (None).
    shared = None if MODEL in mesh.shape else NamedSharding(mesh, P())
    placed = tuple(shared if axis is None else NamedSharding(mesh, P(AXIS)) for axis in in_axes)
    return jax.jit(mapped, in_shardings=placed)
