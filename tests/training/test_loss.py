"""The loss against NumPy, and the blockwise loss against the loss at once."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.training.loss import WeightedLabels, blockwise_cross_entropy, cross_entropy, divergence

B, T, V, D = 3, 7, 11, 5


def inputs(seed):
    random = np.random.default_rng(seed)
    logits = 3.0 * random.normal(size=(B, T, V)).astype(np.float32)
    labels = random.integers(0, V, (B, T)).astype(np.int32)
    return logits, labels, (random.random((B, T)) < 0.7).astype(np.float32)


SMOOTHINGS = (0.0, 0.1, 0.5)


@cache
def sums_and_gradients():
    """{smoothing: (LossSums, gradient of the loss)} of `inputs(0)`."""

    @jax.jit
    def compute(logits, labels, weights):
        def loss(logits, smoothing):
            sums = cross_entropy(logits, labels, weights, smoothing)
            return sums.loss, sums

        of_loss = jax.grad(loss, has_aux=True)
        return {smoothing: of_loss(logits, smoothing)[::-1] for smoothing in SMOOTHINGS}

    return jax.device_get(compute(*inputs(0)))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_loss_is_cross_entropy_against_the_smoothed_distribution(smoothing):
    """Its gradient is the predicted minus the smoothed distribution, and 0 for padding."""
    logits, labels, weights = inputs(0)
    sums, gradient = sums_and_gradients()[smoothing]
    exact = logits.astype(np.float64)
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    targets = (1 - smoothing) * np.eye(V)[labels] + smoothing / V
    expected = -(targets * log_probs).sum(-1)
    np.testing.assert_allclose(sums.loss, (expected * weights).sum(), rtol=1e-6)
    nll = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(sums.nll, (nll * weights).sum(), rtol=1e-6)
    assert sums.tokens == weights.sum()
    assert sums.correct == ((logits.argmax(-1) == labels) * weights).sum()
    difference = (np.exp(log_probs) - targets) * weights[..., None]
    np.testing.assert_allclose(gradient, difference, rtol=1e-5, atol=1e-6)
    assert (gradient[weights == 0] == 0).all() and (weights == 0).any()


def test_sums_over_bfloat16_logits_are_float32():

    @jax.jit
    def both(logits, labels, weights):
        def loss(logits):
            sums = cross_entropy(logits, labels, weights, 0.1)
            return sums.loss, sums

        narrow, of_loss = logits.astype(jnp.bfloat16), jax.grad(loss, has_aux=True)
        return of_loss(narrow), of_loss(narrow.astype(jnp.float32))

    (gradient, sums), (wide, exact) = jax.device_get(both(*inputs(6)))
    np.testing.assert_allclose(sums, exact, rtol=1e-6)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(gradient.astype(np.float32), wide, rtol=2**-8, atol=1e-6)


def test_a_label_without_probability_and_weight_changes_no_loss():
    """A bias of −inf for padding, whose label it is."""
    logits, labels, _ = inputs(0)
    weights, labels = np.ones(labels.shape, np.float32), labels.copy()
    weights[:, -1], labels[:, -1] = 0.0, 0
    both = np.stack([logits, logits])
    both[:, :, -1, 0] = np.array([0.0, -np.inf])[:, None]
    losses = jax.jit(jax.vmap(partial(cross_entropy, smoothing=0.1), in_axes=(0, None, None)))
    sums = losses(both, labels, weights)
    for pair in map(np.asarray, (sums.loss, sums.nll)):
        assert pair[0] == pair[1] and np.isfinite(pair[0])


def test_a_token_without_probability_changes_no_divergence():
    """A bias of −inf, compared with logits that lack the token."""
    logits = inputs(5)[0]
    with_bias = logits.copy()
    with_bias[:, :, 0] = -np.inf

    @jax.jit
    def both(*tensors):
        gradient_of = jax.value_and_grad(lambda *xs: divergence(*xs).sum(), (0, 1))
        return [gradient_of(x, x[::-1]) for x in tensors]

    (value, gradients), (expected, of_rest) = jax.device_get(both(with_bias, logits[:, :, 1:]))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for got, rest in zip(gradients, of_rest, strict=True):
        np.testing.assert_allclose(got, np.pad(rest, ((0, 0), (0, 0), (1, 0))), atol=1e-6)


@pytest.mark.parametrize(("r_drop", "sizes"), [(0.0, (2, 13)), (1.5, (1, 3, 7))])
def test_blocks_give_the_same_loss_and_gradient(r_drop, sizes):
    _, labels, weights = (np.concatenate([x, x]) for x in inputs(2))
    random = np.random.default_rng(3)
    hidden = random.normal(size=(2 * B, T, D)).astype(np.float32)
    table = random.normal(size=(V, D)).astype(np.float32)

    def whole(hidden, table, labels, weights):
        return 3.0 * cross_entropy(hidden @ table.T, labels, weights, 0.1, r_drop).loss

    def blocks(hidden, table, labels, weights, block):
        to_logits = lambda x: x @ table.T  # noqa: E731
        fixed = WeightedLabels(labels, weights), 0.1, block, r_drop
        return 3.0 * blockwise_cross_entropy(hidden, to_logits, *fixed).loss

    @jax.jit
    def losses_and_gradients(*arguments):
        of_blocks = [
            jax.value_and_grad(partial(blocks, block=block), (0, 1))(*arguments) for block in sizes
        ]
        return jax.value_and_grad(whole, (0, 1))(*arguments), of_blocks

    results = losses_and_gradients(hidden, table, labels, weights)
    (loss, gradient), of_blocks = jax.device_get(results)
    for block, (block_loss, block_gradient) in zip(sizes, of_blocks, strict=True):
        np.testing.assert_allclose(block_loss, loss, rtol=1e-6, err_msg=f"block {block}")
        for got, expected in zip(block_gradient, gradient, strict=True):
            assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max(), block
