"""Part: our attention against jax.nn.dot_product_attention, forward and backward.

Axes: B batch · H heads · T queries = keys · K head width.
The other implementation is cuDNN on a GPU and XLA elsewhere. Each gets its own layout: ours
[B, H, T, K], the other [B, T, H, K].
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.parts.measuring import call_seconds
from benchmarks.parts.sizes import PAIR, Sizes
from seq2seq.model.attention import causal_mask, dot_product_attention, segment_mask


def attention_rows(sizes: Sizes, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each shape and mask, in bfloat16."""
    for shape in sizes.attention:
        for name, segments, causal in masks(shape):
            yield compared(sizes, shape, name, segments, causal)


def masks(shape: tuple[int, int, int, int]) -> Iterator[tuple[str, np.ndarray, bool]]:
    """(description, segment ids [B, T], whether causal). Packed rows have several segments; rows of
    one pair are padded to between half of T and T."""
    rows, _, length, _ = shape
    place = np.arange(length)
    packed = np.broadcast_to(place // min(PAIR, length // 2) + 1, (rows, length))
    lengths = np.linspace(length // 2, length, rows).astype(int)
    single = (place < lengths[:, None]).astype(np.int32)
    for kind, segments in (("packed rows", packed), ("one pair per row", single)):
        for causal in (False, True):
            yield f"{kind}{', causal' if causal else ''}", segments, causal


def compared(sizes: Sizes, shape, name: str, segments: np.ndarray, causal: bool) -> dict[str, Any]:
    """The seconds of both implementations and their largest difference in the output and the three
    gradients, relative to the largest value of ours. An unsupported mask gives the reason."""
    valid = jnp.asarray(segments > 0)[:, None, :, None]
    inputs = [jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i in range(3)]
    weights = jax.random.normal(jax.random.key(3), shape) * valid
    swapped = partial(jnp.swapaxes, axis1=1, axis2=2)
    ours = partial(forward_backward, our_attention(segments, causal), weights, *inputs)
    theirs = fused_attention(segments, causal)
    theirs = partial(forward_backward, theirs, swapped(weights), *map(swapped, inputs))
    row = {"shape": " × ".join(map(str, shape)), "mask": name, "implementation": implementation()}
    try:
        output = jax.block_until_ready(theirs())
    except Exception as error:  # noqa: BLE001 – cuDNN refuses what it does not support
        seconds = call_seconds({"ours": ours}, sizes.seconds)
        return row | {"ours": seconds["ours"], "error": f"not supported: {error}"[:120]}
    expected = ours()
    seconds = call_seconds({"ours": ours, "fused": theirs}, sizes.seconds)
    differences = [
        jnp.abs((x - swapped(y)) * valid).max() / jnp.abs(x * valid).max()
        for x, y in zip(
            [x.astype(jnp.float32) for x in expected],
            [y.astype(jnp.float32) for y in output],
            strict=True,
        )
    ]
    return row | seconds | {"difference": float(max(differences))}


def implementation() -> str:
    """The implementation of jax.nn.dot_product_attention to compare with."""
    return "cudnn" if jax.default_backend() == "gpu" else "xla"


def our_attention(segments: np.ndarray, causal: bool) -> Callable[..., jax.Array]:
    """(queries, keys, values) → output, all [B, H, T, K]."""

    def attend(queries, keys, values):
        return dot_product_attention(queries, keys, values, boolean_mask(segments, causal))[0]

    return attend


def fused_attention(segments: np.ndarray, causal: bool) -> Callable[..., jax.Array]:
    """(queries, keys, values) → output, all [B, T, H, K].

    Lengths and is_causal express rows of one pair; packed rows need a mask.
    """
    attend = partial(jax.nn.dot_product_attention, implementation=implementation())
    if segments.max() > 1:
        return lambda *inputs: attend(*inputs, mask=boolean_mask(segments, causal))
    lengths = jnp.asarray(segments.sum(axis=1), jnp.int32)
    options = dict(query_seq_lengths=lengths, key_value_seq_lengths=lengths, is_causal=causal)
    return partial(attend, **options)


def boolean_mask(segments: np.ndarray, causal: bool) -> jax.Array:
    """[B, 1, T, T], True where a query may attend."""
    mask = segment_mask(*[jnp.asarray(segments, jnp.int32)] * 2)
    return mask & causal_mask(segments.shape[1]) if causal else mask


@partial(jax.jit, static_argnums=0)
def forward_backward(attend, weights, *inputs):
    """(output, gradients of its weighted sum for queries, keys and values)."""

    def weighted(*inputs):
        output = attend(*inputs)
        return (output.astype(jnp.float32) * weights).sum(), output

    gradients, output = jax.grad(weighted, (0, 1, 2), has_aux=True)(*inputs)
    return output, *gradients
