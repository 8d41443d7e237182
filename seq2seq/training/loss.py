"""Label-smoothed cross-entropy as sums and counts, at once or in blocks of the sequence.

Axes: B batch · T target · D model width · V vocabulary · t positions of a block.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
    r_drop: float = 0.0,
) -> LossSums:
    """Cross-entropy against (1 − ε) one-hot + ε / V (section 5.4), without building the targets.

    `weights` is 0 for padding; for tokens it is 1 or the loss weight of the pair. With `r_drop` α
    the second half of the rows repeats the first half with other dropout, and the loss has in
    addition α / 2 · `divergence` for each token of the first half (R-Drop, Liang et al. 2021,
    equation 4).
    """
    loss, nll, correct = token_losses(logits, labels, smoothing)  # 3 × [B, T]
    # Padding has a label too, whose loss is infinite with a bias of −inf: 0 · ∞ would be NaN.
    counts = weights > 0  # [B, T]
    sums = LossSums(
        loss=(jnp.where(counts, loss, 0.0) * weights).sum(),
        nll=(jnp.where(counts, nll, 0.0) * weights).sum(),
        correct=(correct * weights).sum(),
        tokens=weights.sum(),
    )
    if r_drop == 0.0:
        return sums
    divergences = divergence(*jnp.split(logits, 2)) * jnp.split(weights, 2)[0]  # [B/2, T]
    return sums._replace(loss=sums.loss + r_drop / 2 * divergences.sum())


def divergence(logits: Float[Array, "B T V"], others: Float[Array, "B T V"]) -> Float[Array, "B T"]:
    """KL(p ‖ q) + KL(q ‖ p) of the distributions p and q of the logits, in nats."""
    log_p, log_q = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in (logits, others))
    # A bias of −inf makes both −inf.
    difference = jnp.where(log_p == log_q, 0.0, log_p - log_q)
    return ((jnp.exp(log_p) - jnp.exp(log_q)) * difference).sum(axis=-1)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def token_losses(
    logits: Float[Array, "B T V"], labels: Int[Array, "B T"], smoothing: float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Float[Array, "B T"]]:
    """(loss, nll, correct) of each token, of which only the loss has a gradient."""
    return token_losses_forward(logits, labels, smoothing)[0]


def token_losses_forward(
    logits: Float[Array, "B T V"], labels: Int[Array, "B T"], smoothing: float
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    """Residuals: the logits, their normalizer [B, T], and the labels."""
    if logits.dtype != jnp.float32:
        logits = jax.lax.optimization_barrier(logits)  # otherwise XLA stores them in float32
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]  # [B, T]
    label_logit = label_logit.astype(jnp.float32)
    wide = logits.astype(jnp.float32)  # [B, T, V]
    largest = wide.max(axis=-1)  # [B, T]
    normalizer = largest + jnp.log(jnp.exp(wide - largest[..., None]).sum(axis=-1))  # [B, T]
    nll = loss = normalizer - label_logit  # [B, T]
    if smoothing != 0.0:
        loss = (1.0 - smoothing) * nll + smoothing * (normalizer - wide.mean(axis=-1))
    correct = (label_logit >= largest).astype(jnp.float32)  # [B, T]
    return (loss, nll, correct), (logits, normalizer, labels)


def token_losses_backward(
    smoothing: float,
    residuals: tuple[Array, Array, Array],
    gradients: tuple[Array, Array, Array],
) -> tuple[Float[Array, "B T V"], None]:
    """The softmax minus the targets, of the logits; None for the labels."""
    logits, normalizer, labels = residuals
    size = logits.shape[-1]
    is_label = jnp.arange(size) == labels[..., None]  # [B, T, V]
    softmax = jnp.exp(logits.astype(jnp.float32) - normalizer[..., None])  # [B, T, V]
    targets = jnp.where(is_label, 1.0 - smoothing + smoothing / size, smoothing / size)
    gradient = softmax - targets  # [B, T, V]
    return (gradient * gradients[0][..., None]).astype(logits.dtype), None


token_losses.defvjp(token_losses_forward, token_losses_backward)


class WeightedLabels(NamedTuple):
    """What the decoder must predict."""

    labels: Int[Array, "B T"]
    weights: Float[Array, "B T"]  # 0 for padding


def blockwise_cross_entropy(
    hidden: Float[Array, "B T D"],
    to_logits: Callable[[Array], Array],
    labeled: WeightedLabels,
    smoothing: float,
    block: int,
    r_drop: float = 0.0,
) -> LossSums:
    """`cross_entropy(to_logits(hidden), …)` with the logits of only `block` positions in memory.

    The gradient of each block is computed with its loss, so that no logits are kept or computed
    twice. `block` 0 means all positions at once.
    """
    if block == 0 or block >= hidden.shape[1]:
        return cross_entropy(to_logits(hidden), *labeled, smoothing, r_drop)
    # The parameters that `to_logits` closes over, as an argument with a gradient.
    to_logits, params = jax.closure_convert(to_logits, hidden[:, :block])
    labels, weights = (split(x, block) for x in labeled)  # [blocks, B, t]

    def loss(inputs: Any, labels: Array, weights: Array) -> tuple[Array, LossSums]:
        params, hidden = inputs  # hidden [B, t, D], labels and weights [B, t]
        sums = cross_entropy(to_logits(hidden, *params), labels, weights, smoothing, r_drop)
        return sums.loss, sums

    @jax.custom_vjp
    def all_blocks(params: Any, hidden: Array) -> LossSums:  # hidden [blocks, B, t, D]
        def add(sums: LossSums, xs: Any) -> tuple[LossSums, None]:
            return jax.tree.map(jnp.add, sums, loss((params, xs[0]), *xs[1:])[1]), None

        return jax.lax.scan(add, zero_sums(), (hidden, labels, weights))[0]

    def forward(params: Any, hidden: Array) -> tuple[LossSums, Any]:
        def add(total: Any, xs: Any) -> tuple[Any, Array]:
            (gradient, of_hidden), sums = jax.grad(loss, has_aux=True)((params, xs[0]), *xs[1:])
            return jax.tree.map(jnp.add, total, (sums, gradient)), of_hidden  # [B, t, D]

        zeros = zero_sums(), jax.tree.map(jnp.zeros_like, params)
        (sums, gradient), of_hidden = jax.lax.scan(add, zeros, (hidden, labels, weights))
        return sums, (gradient, of_hidden)  # of_hidden [blocks, B, t, D]

    def backward(gradients: Any, of_sums: LossSums) -> Any:
        return jax.tree.map(lambda x: x * of_sums.loss.astype(x.dtype), gradients)

    all_blocks.defvjp(forward, backward)
    return all_blocks(params, split(hidden, block))


def split(x: Float[Array, "B T ..."] | Int[Array, "B T"], block: int) -> Array:
    """[B, T, …] → [blocks, B, t, …]; the last block is padded with 0."""
    blocks = -(-x.shape[1] // block)
    missing = blocks * block - x.shape[1]
    x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(x.shape[0], blocks, block, *x.shape[2:]), 1, 0)
