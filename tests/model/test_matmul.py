"""The matmul with weights against NumPy, and its dtypes.

Axes: B batch · T time · D model width · H heads · K head width.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.layers import FeedForwardParams
from seq2seq.model.matmul import cast_weights, matmul, matmul_transposed

B, T, D, H, K = 2, 5, 13, 3, 7
BF16, F32 = jnp.bfloat16, jnp.float32


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x, dtype):
    """x rounded to `dtype`, in float64."""
    return np.asarray(x).astype(dtype).astype(np.float64)


@pytest.mark.parametrize("values", [F32, BF16])
@pytest.mark.parametrize("weights", [F32, BF16])
def test_products_have_the_weights_dtype_sums_float32_and_the_result_the_dtype_of_x(
    values, weights
):
    shapes = (B, T), (1, 1), (1,), (), (1, 0)
    inputs = [normal(*rows, D).astype(values) for rows in shapes]
    weight, bias = normal(D, H, K, seed=1).astype(weights), normal(H, K, seed=2)

    @jax.jit
    def run(inputs, weight, bias):
        return [(matmul(x, weight), matmul(x, weight, bias)) for x in inputs]

    tolerance = 1e-5 if values == F32 else 2**-7
    for rows, x, results in zip(shapes, inputs, run(inputs, weight, bias), strict=True):
        expected = np.einsum("...d,dhk->...hk", rounded(x, weights), rounded(weight, weights))
        for got, more in zip(results, (0.0, rounded(bias, values)), strict=True):
            assert got.shape == (*rows, H, K) and got.dtype == values
            got = np.asarray(got).astype(F32)
            np.testing.assert_allclose(got, expected + more, tolerance, tolerance, err_msg=rows)


@pytest.mark.parametrize("values", [F32, BF16])
@pytest.mark.parametrize("weights", [F32, BF16])
def test_a_transposed_weight_gives_the_same_product(values, weights):
    shapes = (B, T), (1, 1), (1,), (), (1, 0), (4, 32)
    inputs = [normal(*rows, 64).astype(values) for rows in shapes]
    weight, bias = normal(64, 300, seed=1).astype(weights), normal(300, seed=2)

    @jax.jit
    def run(inputs, weight, transposed, bias):
        return [
            [(matmul(x, weight, b), matmul_transposed(x, transposed, b)) for b in (None, bias)]
            for x in inputs
        ]

    tolerance = 1e-5 if values == F32 else 2**-7
    results = jax.device_get(run(inputs, weight, weight.T, bias))
    for x, pairs in zip(inputs, results, strict=True):
        for same, result in pairs:
            assert result.dtype == same.dtype and result.shape == same.shape
            result, same = result.astype(F32), same.astype(F32)
            np.testing.assert_allclose(result, same, tolerance, tolerance, err_msg=x.shape)


@pytest.mark.parametrize("weights", [F32, BF16])
def test_a_loop_does_not_copy_a_transposed_weight(weights):
    def run(x, weight):
        return jax.lax.fori_loop(0, 9, lambda _, x: matmul_transposed(x, weight)[..., :64], x)

    arguments = np.zeros((4, 32, 64), F32), np.zeros((300, 64), weights)
    program = jax.jit(run).lower(*arguments).compile().as_text()
    assert "[300,64]" in program and "[64,300]" not in program


@pytest.mark.parametrize("rows", [(B, T), (1, 1)])
@pytest.mark.parametrize("weights", [F32, BF16])
def test_gradients_are_computed_from_products_in_the_weights_dtype(weights, rows):
    x, weight, like = normal(*rows, D), normal(D, H, K, seed=1).astype(weights), normal(*rows, H, K)

    @jax.jit
    def gradients(x, weight, like):
        return jax.vjp(matmul, x, weight)[1](like)

    x_gradient, weight_gradient = gradients(x, weight, like)
    a, w, g = (rounded(array, weights) for array in (x, weight, like))
    assert (x_gradient.dtype, weight_gradient.dtype) == (F32, weights)
    np.testing.assert_allclose(x_gradient, np.einsum("bthk,dhk->btd", g, w), rtol=1e-5, atol=1e-5)
    expected, tolerance = np.einsum("btd,bthk->dhk", a, g), 1e-5 if weights == F32 else 2**-8
    weight_gradient = np.asarray(weight_gradient).astype(F32)
    np.testing.assert_allclose(weight_gradient, expected, rtol=tolerance, atol=1e-5)


def test_one_row_has_the_bits_of_the_same_row_beside_another():
    weight, two = normal(D, K, seed=1).astype(BF16), normal(2, D)
    multiply = jax.jit(matmul)
    for row in (0, 1):
        alone = multiply(two[row : row + 1], weight)
        assert alone.tobytes() == multiply(two, weight)[row : row + 1].tobytes()


def test_bfloat16_weights_leave_no_product_of_float32_in_either_direction():
    def loss(x, weight):
        return jnp.square(matmul(x, weight)).sum()

    arguments = normal(B, T, D), normal(D, K).astype(BF16)
    text = jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).as_text()
    types = [line.rpartition(" : ")[2] for line in text.splitlines() if "dot_general" in line]
    assert len(types) == 3
    assert all(operands.count("xbf16>") == 2 and operands.endswith("xf32>") for operands in types)


@pytest.mark.parametrize("weights", [F32, BF16])
def test_products_of_float32_have_full_precision_in_either_direction(weights):
    def loss(x, weight):
        return jnp.square(matmul(x, weight)).sum()

    arguments = normal(B, T, D), normal(D, K).astype(weights)
    text = jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).as_text()
    full = text.count("precision = [HIGHEST, HIGHEST]")
    assert text.count("stablehlo.dot_general") == 3 and full == (3 if weights == F32 else 0)


def test_a_float32_matmul_has_forward_mode_derivatives():
    x, weight, direction = normal(B, T, D), normal(D, K, seed=1), normal(B, T, D, seed=2)

    @jax.jit
    def derivative(x, direction):
        return jax.jvp(lambda x: matmul(x, jnp.asarray(weight)), (x,), (direction,))[1]

    tangent = derivative(x, direction)
    np.testing.assert_allclose(tangent, direction @ weight, rtol=1e-5, atol=1e-5)


def test_float64_stays_float64():
    with jax.enable_x64():
        x, weight = (np.asarray(normal(*shape), np.float64) / 3 for shape in ((B, T, D), (D, K)))
        np.testing.assert_allclose(jax.jit(matmul)(x, weight), x @ weight, rtol=1e-13, atol=1e-13)


def test_weights_are_cast_and_biases_are_not():
    shapes = (D, K), (K,), (K, D), (D,), (D, K)
    params = FeedForwardParams(*(jnp.asarray(normal(*shape)) for shape in shapes))
    cast = cast_weights(params, "bfloat16")
    assert [array.dtype for array in cast] == [BF16, F32, BF16, F32, BF16]
    assert cast_weights(params._replace(gate=None), "bfloat16").gate is None
    assert cast_weights(cast, "float32").inner.dtype == F32
