"""The compiled programs of the engine: encode and search in one graph, for each kind of search.

Numbers that do not change the graph (`Values`) are arguments of a program, so that a new value
needs no compilation. All engines of a process share the programs; the least recently used one is
released when there are more than PROGRAMS.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from seq2seq.config.tree import DecodingConfig
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.rules import RuleOptions, Rules
from seq2seq.model.search.translate import Request, Search, translate
from seq2seq.runtime.devices import replicated

PROGRAMS = 32  # kept: enough for four sets of options with eight buckets each


class Values(NamedTuple):
    """Options that are arguments of a program."""

    alpha: float
    temperature: float
    top_p: float
    repetition_penalty: float
    seed: int
    weights: np.ndarray | None  # of an ensemble


class Pieces(NamedTuple):
    """The ids of the pieces that the options of these names list."""

    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    forced_prefix: tuple[int, ...] = ()


class Program(NamedTuple):
    """The key of a compiled program. Fields of `search` that are None come from `Values`."""

    models: tuple[EncoderDecoder, ...]
    search: Search
    bucket: int  # source tokens
    length: int  # target tokens
    lanes: int  # sentences searched at once


def values_of(options: DecodingConfig, weights: np.ndarray | None) -> Values:
    """The values of these options; integers that a caller has given for numbers become floats."""
    return Values(
        alpha=float(options.alpha),
        temperature=float(options.temperature),
        top_p=float(options.top_p),
        repetition_penalty=float(options.repetition_penalty),
        seed=options.seed,
        weights=weights,
    )


def search_of(options: DecodingConfig, pieces: Pieces, custom: Rules | None) -> Search:
    """The search of these options. A rule that is disabled is not compiled."""
    rules = with_fields_of(
        options,
        RuleOptions,
        suppress=pieces.suppress,
        suppress_first=pieces.suppress_first,
        custom=custom,
        repetition_penalty=1.0 if options.repetition_penalty == 1.0 else None,
    )
    return with_fields_of(
        options,
        Search,
        rules=rules,
        alpha=None,
        temperature=None,
        top_p=1.0 if options.top_p == 1.0 else None,
        weights=None,
    )


def check_rules(rules: Any) -> None:
    """TypeError unless `rules` is None or can be a part of the key of a compiled program."""
    if rules is not None and not (callable(rules) and isinstance(rules, Hashable)):
        raise TypeError(
            "rules must be a hashable function of (logits, normalizer, history, t, sentences), got "
            f"{type(rules).__name__}"
        )


def with_fields_of(options: DecodingConfig, tuple_type: type[Any], **values: Any) -> Any:
    """A NamedTuple of this type; the fields without a value in `values` are those of `options`."""
    missing = [name for name in tuple_type._fields if name not in values]
    return tuple_type(**values, **{name: getattr(options, name) for name in missing})


def with_values(options: Any, values: Values) -> Any:
    """`options` with the fields that are None replaced by the values of the same names."""
    missing = [name for name in options._fields if getattr(options, name) is None]
    shared = [name for name in missing if name in values._fields]
    return options._replace(**{name: getattr(values, name) for name in shared})


def graph(program: Program) -> Callable[..., Hypotheses]:
    """(variables, request, line numbers, values) → Hypotheses, on one device."""

    def run(
        variables: Sequence[Any], request: Request, numbers: jax.Array, values: Values
    ) -> Hypotheses:
        rules = with_values(program.search.rules, values)
        search = with_values(program.search, values)._replace(rules=rules)
        if search.samples:
            key = jax.random.PRNGKey(values.seed)
            keys = jax.vmap(partial(jax.random.fold_in, key))(numbers)  # [Q, 2]
            request = request._replace(keys=keys)
        models = list(zip(program.models, variables, strict=True))
        return translate(models, request, search, program.length, program.lanes)

    return run


@lru_cache(PROGRAMS)
def compiled(program: Program) -> jax.stages.Wrapped:
    """`graph` on all local devices; requests and line numbers have a leading axis of devices."""
    return on_devices(graph(program), (None, 0, 0, None))


def on_devices(function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> jax.stages.Wrapped:
    """`jax.pmap(function, in_axes=in_axes)` on the local devices, for axes 0 and None.

    Decoding does not use the helper of training and evaluation (seq2seq/training/parallel.py): pmap
    never releases a compiled program, of which decoding has one for each bucket and set of options,
    and the devices of several processes would wait for each other, although each decodes its own
    lines.
    """
    mesh = replicated().mesh
    per_device = P(*mesh.axis_names)
    specs = tuple(P() if axis is None else per_device for axis in in_axes)

    def run(*arguments: Any) -> Any:
        local = [
            tree if axis is None else jax.tree.map(lambda x: x[0], tree)
            for tree, axis in zip(arguments, in_axes, strict=True)
        ]
        return jax.tree.map(lambda x: x[None], function(*local))

    mapped = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=per_device, check_vma=False)
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    return jax.jit(mapped, in_shardings=shardings)
