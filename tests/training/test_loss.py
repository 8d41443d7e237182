"""The loss against NumPy, and the blockwise loss against the loss at once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.training.loss import blockwise_cross_entropy, cross_entropy, divergence

B, T, V, D = 3, 7, 11, 5


def inputs(seed):
    random = np.random.default_rng(seed)
    logits = 3.0 * random.normal(size=(B, T, V)).astype(np.float32)
    return logits, random.integers(0, V, (B, T)), (random.random((B, T)) < 0.7).astype(np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_is_cross_entropy_against_the_smoothed_distribution(smoothing):
    logits, labels, weights = inputs(0)
    exact = logits.astype(np.float64)
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    targets = (1 - smoothing) * np.eye(V)[labels] + smoothing / V
    sums = cross_entropy(*map(jnp.asarray, (logits, labels, weights)), smoothing)
    expected = -(targets * log_probs).sum(-1)
    np.testing.assert_allclose(sums.loss, (expected * weights).sum(), rtol=1e-6)
    nll = -np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(sums.nll, (nll * weights).sum(), rtol=1e-6)
    assert sums.tokens == weights.sum()
    assert sums.correct == ((logits.argmax(-1) == labels) * weights).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_the_predicted_minus_the_smoothed_distribution(smoothing):
    logits, labels, weights = inputs(4)
    exponentials = np.exp(logits.astype(np.float64))
    targets = (1 - smoothing) * np.eye(V)[labels] + smoothing / V
    expected = exponentials / exponentials.sum(-1, keepdims=True) - targets
    fixed = tuple(map(jnp.asarray, (labels, weights)))
    gradient = jax.grad(lambda x: cross_entropy(x, *fixed, smoothing).loss)(jnp.asarray(logits))
    np.testing.assert_allclose(gradient, expected * weights[..., None], rtol=1e-5, atol=1e-6)


def test_sums_over_bfloat16_logits_are_float32():
    logits, labels, weights = map(jnp.asarray, inputs(6))
    narrow = logits.astype(jnp.bfloat16)

    def loss(logits):
        sums = cross_entropy(logits, labels, weights, 0.1)
        return sums.loss, sums

    (_, sums), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(narrow)
    (_, exact), wide = jax.value_and_grad(loss, has_aux=True)(narrow.astype(jnp.float32))
    np.testing.assert_allclose(sums, exact, rtol=1e-6)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(gradient.astype(jnp.float32), wide, rtol=2**-8, atol=1e-6)


def test_padding_has_no_gradient():
    logits, labels, weights = inputs(1)
    fixed = tuple(map(jnp.asarray, (labels, weights)))
    gradient = jax.grad(lambda x: cross_entropy(x, *fixed, 0.1).loss)(jnp.asarray(logits))
    assert (np.asarray(gradient)[weights == 0] == 0).all()
    assert (np.abs(np.asarray(gradient)[weights == 1]).sum(-1) > 0).all()


def test_a_label_without_probability_and_weight_changes_no_loss():
    """A bias of −inf for padding, whose label it is."""
    logits, labels = map(jnp.asarray, inputs(0)[:2])
    weights = jnp.ones(labels.shape).at[:, -1].set(0.0)
    sums = [
        cross_entropy(logits.at[:, -1, 0].set(value), labels.at[:, -1].set(0), weights, 0.1)
        for value in (0.0, -jnp.inf)
    ]
    assert float(sums[0].loss) == float(sums[1].loss) and float(sums[0].nll) == float(sums[1].nll)


def test_a_token_without_probability_changes_no_divergence():
    """A bias of −inf, compared with logits that lack the token."""
    logits = jnp.asarray(inputs(5)[0])
    others = logits[::-1]
    gradient_of = jax.value_and_grad(lambda *xs: divergence(*xs).sum(), (0, 1))
    value, gradients = gradient_of(*(x.at[:, :, 0].set(-jnp.inf) for x in (logits, others)))
    expected, of_rest = gradient_of(logits[:, :, 1:], others[:, :, 1:])
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for got, rest in zip(gradients, of_rest, strict=True):
        np.testing.assert_allclose(got, np.pad(rest, ((0, 0), (0, 0), (1, 0))), atol=1e-6)


@pytest.mark.parametrize("r_drop", [0.0, 1.5])
def test_blocks_give_the_same_loss_and_gradient(r_drop):
    _, labels, weights = (jnp.concatenate([x, x]) for x in map(jnp.asarray, inputs(2)))
    random = np.random.default_rng(3)
    hidden = jnp.asarray(random.normal(size=(2 * B, T, D)), jnp.float32)
    table = jnp.asarray(random.normal(size=(V, D)), jnp.float32)

    def whole(hidden, table):
        return 3.0 * cross_entropy(hidden @ table.T, labels, weights, 0.1, r_drop).loss

    def blocks(hidden, table, block):
        to_logits = lambda x: x @ table.T  # noqa: E731
        fixed = labels, weights, 0.1, block, r_drop
        return 3.0 * blockwise_cross_entropy(hidden, to_logits, *fixed).loss

    sizes = (1, 2, 3, 7, 13)

    @jax.jit
    def losses_and_gradients(hidden, table):
        of_blocks = [
            jax.value_and_grad(partial(blocks, block=block), (0, 1))(hidden, table)
            for block in sizes
        ]
        return jax.value_and_grad(whole, (0, 1))(hidden, table), of_blocks

    (loss, gradient), of_blocks = jax.device_get(losses_and_gradients(hidden, table))
    for block, (block_loss, block_gradient) in zip(sizes, of_blocks, strict=True):
        np.testing.assert_allclose(block_loss, loss, rtol=1e-6, err_msg=f"block {block}")
        for got, expected in zip(block_gradient, gradient, strict=True):
            assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max(), block
