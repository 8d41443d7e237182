"""Label-smoothed cross-entropy as sums and counts, at once or in blocks of the sequence.

Axes: B batch · T target · D model width · V vocabulary · t positions of a block.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class LossSums(NamedTuple):
    """Weighted sums over target tokens; they add up over blocks, rows and devices."""

    loss: Float[Array, ""]  # smoothed cross-entropy, in nats
    nll: Float[Array, ""]  # unsmoothed cross-entropy, in nats: perplexity = exp(nll / tokens)
    correct: Float[Array, ""]  # number of tokens whose label has the largest logit
    tokens: Float[Array, ""]  # the sum of the weights, which have the mean 1: the number of tokens


def zero_sums() -> LossSums:
    """Sums of 0, the start of an accumulation."""
    return LossSums(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def cross_entropy(
    logits: Float[Array, "B T V"],
    labels: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
) -> LossSums:
    """Cross-entropy against (1 − ε) one-hot + ε / V (section 5.4), without building the targets.

    `weights` is 0 for padding; for tokens it is 1 or the loss weight of the pair.
    """
    # The arrays below are [B, T].
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    label_logit = label_logits(logits, labels)
    nll = normalizer - label_logit
    loss = nll
    if smoothing != 0.0:
        loss = (1.0 - smoothing) * nll + smoothing * (normalizer - logits.mean(axis=-1))
    correct = (label_logit >= logits.max(axis=-1)).astype(jnp.float32)
    return LossSums(
        loss=(loss * weights).sum(),
        nll=(nll * weights).sum(),
        correct=(correct * weights).sum(),
        tokens=weights.sum(),
    )


@jax.custom_vjp
def label_logits(logits: Float[Array, "B T V"], labels: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """The logit of each label. Its gradient is elementwise; that of JAX's gather is a scatter."""
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def label_logits_forward(
    logits: Float[Array, "B T V"], labels: Int[Array, "B T"]
) -> tuple[Float[Array, "B T"], tuple[Int[Array, "B T"], Float[Array, " V"]]]:
    """Residuals: the labels, and an array [V] for the size and dtype of the logits."""
    return label_logits(logits, labels), (labels, jnp.zeros(logits.shape[-1:], logits.dtype))


def label_logits_backward(
    residuals: tuple[Int[Array, "B T"], Float[Array, " V"]], gradient: Float[Array, "B T"]
) -> tuple[Float[Array, "B T V"], None]:
    """The gradients of the logits (that of the label's logit at the label, else 0) and labels."""
    labels, like = residuals
    is_label = jnp.arange(len(like)) == labels[..., None]  # [B, T, V]
    return jnp.where(is_label, gradient[..., None], 0.0).astype(like.dtype), None


label_logits.defvjp(label_logits_forward, label_logits_backward)


def blockwise_cross_entropy(
    hidden: Float[Array, "B T D"],
    to_logits: Callable[[Array], Array],
    labels: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    smoothing: float,
    block: int,
) -> LossSums:
    """`cross_entropy(to_logits(hidden), …)` with the logits of only `block` positions in memory.

    The backward pass recomputes the logits of each block. `block` 0 means all positions at once.
    """
    length = hidden.shape[1]
    if block == 0 or block >= length:
        return cross_entropy(to_logits(hidden), labels, weights, smoothing)
    blocks = -(-length // block)

    def split(x: Array) -> Array:  # [B, T, …] → [blocks, B, t, …], padded with weights 0
        x = jnp.pad(x, [(0, 0), (0, blocks * block - length)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], blocks, block, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def add_block(sums: LossSums, xs: tuple[Array, Array, Array]) -> tuple[LossSums, None]:
        hidden, labels, weights = xs  # [B, t, D], [B, t], [B, t]
        more = cross_entropy(to_logits(hidden), labels, weights, smoothing)
        return jax.tree.map(jnp.add, sums, more), None

    sums, _ = jax.lax.scan(add_block, zero_sums(), tuple(map(split, (hidden, labels, weights))))
    return sums
