"""Tensors of transformers and our parameters: the same numbers under other names.

A family lists its tensors as `Tensor`s. Matrices are stored (out, in), ours (in, out).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from seq2seq.model.config import ModelConfig
from seq2seq.model.mesh import Placer
from seq2seq.pretrained.weight_files import WeightFiles
from seq2seq.runtime.errors import CHECKPOINT, UserError

ALIGNMENT = 64  # bytes
TOLERANCE = 2e-3  # of what a file stores although others determine it, perhaps in half precision


class Tensor(NamedTuple):
    """One tensor: its name, its path in our parameters, and its shape."""

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]
    # Other names under which a file may have it. If it has several, they must be equal.
    copies: tuple[str, ...] = ()
    fallback: str = ""  # the name that is read if all others are absent, and is ignored otherwise
    first_row: int = 0  # the rows before it are never used
    zeros: bool = False  # absent: zeros


# A tensor that is no parameter: the value that it must have, or None if it has no effect.
Redundant = Mapping[str, Callable[[], np.ndarray] | None]


def attention_layers(config: ModelConfig) -> Iterator[Tensor]:
    """The layers of the families that descend from fairseq's Transformer, MarianMT among them."""
    for side, layers in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        for i in range(layers):
            yield from _layer(side, i, config.d_model, config.d_ff)


def _layer(side: str, i: int, d: int, d_ff: int) -> Iterator[Tensor]:
    prefix, ours = f"model.{side}.layers.{i}.", (side, f"layers_{i}")
    attentions = [("self_attn", "self_attention", "around_self")]
    if side == "decoder":
        attentions.append(("encoder_attn", "cross_attention", "around_cross"))
    for name, attention, around in attentions:
        for short, part in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
            projection, path = f"{prefix}{name}.{short}_proj", (*ours, attention)
            yield Tensor(f"{projection}.weight", (*path, part), (d, d))
            yield Tensor(f"{projection}.bias", (*path, f"{part}_bias"), (d,))
        yield from norm(f"{prefix}{name}_layer_norm", (*ours, around, "norm"), d)
    for name, part, shape in (("fc1", "inner", (d_ff, d)), ("fc2", "outer", (d, d_ff))):
        path = (*ours, "feed_forward")
        yield Tensor(f"{prefix}{name}.weight", (*path, part), shape)
        yield Tensor(f"{prefix}{name}.bias", (*path, f"{part}_bias"), shape[:1])
    yield from norm(f"{prefix}final_layer_norm", (*ours, "around_feed_forward", "norm"), d)


def norm(name: str, path: tuple[str, ...], d: int) -> Iterator[Tensor]:
    """Scale and bias of a layer norm."""
    yield Tensor(f"{name}.weight", (*path, "scale"), (d,))
    yield Tensor(f"{name}.bias", (*path, "bias"), (d,))


def our_layout(array: np.ndarray, path: tuple[str, ...], config: ModelConfig) -> np.ndarray:
    """An array transposed, and reshaped to heads where our parameter has them."""
    name, heads = path[-1], (config.num_heads, config.head_size)
    if name == "table":
        return array
    array = array.T
    if name.removesuffix("_bias") in ("query", "key", "value"):
        return array.reshape(*array.shape[:-1], *heads)
    if name == "output":
        return array.reshape(*heads, -1)
    if path == ("output_bias",):
        return array.reshape(-1)
    return array


def their_layout(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """The inverse of `our_layout`; rows that are never used are zero."""
    name, shape = tensor.path[-1], tensor.shape
    if name == "table":
        return np.pad(array, ((tensor.first_row, 0), (0, 0))) if tensor.first_row else array
    if len(shape) == 2 and tensor.path != ("output_bias",):
        return array.reshape(shape[::-1]).T
    return array.reshape(shape)


def stored_tensors(tensors: Iterable[Tensor], params: Any) -> dict[str, np.ndarray]:
    """The arrays of a file by name: the inverse of `read_params`, bit-exact. Copies are not stored.

    Biases that the parameters do not have are zero. If the caller does not keep `params`, memory
    holds one array besides them.
    """
    ours, arrays = flatten_dict(params), {}
    del params
    for tensor in tensors:
        array = ours.pop(tensor.path, None)
        if array is None:
            array = np.zeros(tensor.shape, np.float32)
        else:
            array = their_layout(np.asarray(array, np.float32), tensor)
        arrays[tensor.name] = np.ascontiguousarray(array)
    return arrays


class Place(NamedTuple):
    """Where a file has a tensor."""

    tensor: Tensor
    name: str  # empty if it has none
    copies: tuple[str, ...]


def places_in(
    tensors: Iterable[Tensor],
    redundant: Redundant,
    weights: WeightFiles,
) -> list[Place]:
    """The place of each tensor. Refuses tensors that are missing, unexpected or misshapen."""
    shapes, places = weights.shapes, []
    bare = not any(name.startswith("model.") for name in shapes)  # saved without the output layer
    spelled: Callable[[str], str] = lambda n: n.removeprefix("model.") if bare else n  # noqa: E731
    known = set(map(spelled, redundant))
    for tensor in tensors:
        names = [*map(spelled, (tensor.name, *tensor.copies))]
        stored = [name for name in names if name in shapes]
        fallback = spelled(tensor.fallback)
        known |= {*stored, fallback}
        if not stored and fallback in shapes:
            stored = [fallback]
        if not stored and not tensor.zeros:
            raise UserError(
                CHECKPOINT, f"{weights.path}: the tensor {spelled(tensor.name)} is missing"
            )
        for name in stored:
            if shapes[name] != tensor.shape:
                raise UserError(
                    CHECKPOINT,
                    f"{weights.path}: {name} has shape {shapes[name]}, expected {tensor.shape}",
                )
        places.append(Place(tensor, stored[0] if stored else "", tuple(stored[1:])))
    if unexpected := [name for name in shapes if name not in known]:
        raise UserError(
            CHECKPOINT,
            f"{weights.path}: the tensor {unexpected[0]} is unexpected; a model of this "
            f"config.json does not have it ({len(unexpected)} such tensors)",
        )
    return places


def read_params(
    tensors: Iterable[Tensor],
    redundant: Redundant,
    weights: WeightFiles,
    config: ModelConfig,
    placer: Placer | None = None,
) -> dict[str, Any]:
    """Our parameters, float32: NumPy arrays, or arrays on the devices of a `placer`, each of which
    is put there before the next one is read.

    The largest are read first, while memory is free for the file's copy of them.
    """
    places = places_in(tensors, redundant, weights)
    places.sort(key=lambda place: -int(np.prod(place.tensor.shape)))
    params: dict[str, Any] = {}
    done: dict[str, np.ndarray] = {}
    for tensor, name, copies in places:
        if name in done:
            array = done[name]  # the same memory for both sides
        else:
            stored = weights.read(name) if name else np.zeros(tensor.shape, np.float32)
            for copy in copies:
                check_copy(copy, weights.read(copy), stored, weights, 0)
            array = our_layout(stored[tensor.first_row :], tensor.path, config)
            if placer is None:
                array = aligned(array)
                if tensor.path[-1] == "table":
                    done[name] = array
        parent = params
        for part in tensor.path[:-1]:
            parent = parent.setdefault(part, {})
        parent[tensor.path[-1]] = array if placer is None else placer.place(tensor.path, array)
    for name, value in redundant.items():
        if name in weights.shapes and value is not None:
            check_copy(name, weights.read(name), value(), weights, TOLERANCE)
    return params


def aligned(x: np.ndarray) -> np.ndarray:
    """A contiguous copy at an address that JAX uses on a CPU without copying it again."""
    buffer = np.empty(x.nbytes + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    copy = buffer[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def check_copy(
    name: str, array: np.ndarray, original: np.ndarray, weights: WeightFiles, tolerance: float
) -> None:
    """UserError(CHECKPOINT) unless a tensor equals what it must duplicate."""
    if array.shape != original.shape or not np.allclose(
        array, original, tolerance, tolerance, True
    ):
        raise UserError(
            CHECKPOINT,
            f"{weights.path}: {name} has other values than the tensor or table that it must "
            "duplicate",
        )
