"""Positions: the paper's formula, and its property that offsets are rotations.

Axes: B batch · T time · D model width · H heads · K head width.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.config import CHOICES, ModelConfig
from seq2seq.model.positions import make_positions, rotate, sinusoidal_positions

B, T, H, K, D = 2, 53, 3, 22, 34
LAYOUTS = ("interleaved", "halves")
rotate_jit = jax.jit(rotate)


def sines_and_cosines(layout):
    """The table as two [T, D/2]."""
    table = sinusoidal_positions(T, D, layout)
    return (table[:, ::2], table[:, 1::2]) if layout == "interleaved" else np.split(table, 2, 1)


def test_a_rotation_of_bfloat16_is_that_of_float32_rounded_once():
    random = np.random.default_rng(0)
    x = random.standard_normal((B, H, T, K)).astype(jnp.bfloat16)
    positions = random.integers(0, 1021, (B, T))
    wide = np.asarray(rotate_jit(x.astype(np.float32), positions))
    narrow = rotate_jit(x, positions)
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_array_equal(narrow, wide.astype(jnp.bfloat16))


def test_sinusoids_equal_the_formula_of_section_3_5():
    table = sinusoidal_positions(T, D)
    for pos in range(T):
        for i in range(D // 2):
            angle = pos / 10000 ** (2 * i / D)
            assert table[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_two_layouts_hold_the_same_columns_in_another_order():
    interleaved, halves = (sinusoidal_positions(T, D, layout) for layout in LAYOUTS)
    order = [*range(0, D, 2), *range(1, D, 2)]
    assert np.array_equal(interleaved[:, order], halves)
    assert not np.array_equal(interleaved, halves)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_offset_rotates_each_pair_of_sinusoids_at_every_position(layout):
    sines, cosines = sines_and_cosines(layout)
    for offset in (1, 7, 31):
        angle = offset / 10000 ** (2 * np.arange(D // 2) / D)
        sin, cos = np.sin(angle), np.cos(angle)
        np.testing.assert_allclose(
            sines[offset:], sines[:-offset] * cos + cosines[:-offset] * sin, atol=1e-6
        )
        np.testing.assert_allclose(
            cosines[offset:], cosines[:-offset] * cos - sines[:-offset] * sin, atol=1e-6
        )


def test_rotary_positions_multiply_complex_numbers_by_unit_numbers():
    x = np.random.default_rng(0).standard_normal((B, H, T, K))
    positions = np.random.default_rng(1).integers(0, 1021, (B, T))
    numbers = x[..., : K // 2] + 1j * x[..., K // 2 :]
    angles = positions[:, None, :, None] * 10000.0 ** (-2 * np.arange(K // 2) / K)
    expected = numbers * np.exp(1j * angles)
    got = rotate_jit(jnp.asarray(x, jnp.float32), jnp.asarray(positions))
    np.testing.assert_allclose(
        got, np.concatenate([expected.real, expected.imag], axis=-1), atol=1e-3
    )


def test_rotary_scores_depend_on_the_offset_only():
    random = np.random.default_rng(2)
    query, key = (random.standard_normal((1, 1, 1, K)).astype(np.float32) for _ in "qk")

    def scores(query_positions, key_positions):
        """The scores of one query and one key at each of these pairs of positions."""
        many = len(query_positions)
        queries, keys = (
            np.asarray(rotate_jit(np.repeat(x, many, axis=2), positions[None]))
            for x, positions in ((query, query_positions), (key, key_positions))
        )
        return (queries * keys).sum(axis=-1)[0, 0]

    start, offset = np.repeat([0, 5, 101, 499], 41), np.tile(np.arange(41), 4)
    by_offset = scores(start, start + offset).reshape(4, 41)
    np.testing.assert_allclose(by_offset, np.broadcast_to(by_offset[0], (4, 41)), atol=1e-3)
    assert by_offset[0].std() > 0.1
    assert by_offset[0, 0] == pytest.approx(float((query * key).sum()), abs=1e-5)


def test_rotary_positions_preserve_norms_and_position_0():
    x = np.random.default_rng(3).standard_normal((B, H, T, K)).astype(np.float32)
    positions = np.broadcast_to(np.arange(T), (B, T))
    got = np.asarray(rotate_jit(x, positions))
    np.testing.assert_allclose((got**2).sum(axis=-1), (x**2).sum(axis=-1), rtol=1e-5)
    assert np.array_equal(got[:, :, 0], x[:, :, 0])


def test_sines_of_rotary_positions_are_computed_once_for_all_layers():
    def loss(weights, x, positions):
        for weight in weights:
            heads = jnp.swapaxes((x @ weight).reshape(B, T, H, K), 1, 2)
            queries, keys = rotate(heads, positions), rotate(2 * heads, positions)
            scores = jnp.einsum("bhtk,bhsk->bhts", queries, keys)
            x += jnp.swapaxes(scores @ heads, 1, 2).reshape(B, T, H * K)
        return x.sum()

    arguments = np.zeros((2, H * K, H * K), np.float32), np.zeros((B, T, H * K), np.float32)
    arguments = *arguments, np.zeros((B, T), int)
    program = jax.jit(jax.grad(loss)).lower(*arguments).compile().as_text()
    assert program.count(" sine(") == program.count(" cosine(") == 1


def initialised(config, positions, dtype=np.float32):
    """What is added to zeros, and the variables."""
    x = np.zeros((*positions.shape, D), jnp.dtype(dtype))
    run = partial(make_positions(config, False).init_with_output, method="add")
    return jax.jit(run)(jax.random.key(0), x, positions)


SOME = np.array([[0, 1, 2, 0, 1], [51, 0, 52, 3, 3]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_sinusoidal_module_equals_the_function_bit_for_bit_and_has_no_parameters(layout):
    config = ModelConfig(d_model=D, max_length=T, sinusoid_layout=layout)
    got, variables = jax.device_get(initialised(config, SOME))
    assert np.array_equal(got, sinusoidal_positions(T, D, layout)[SOME])
    assert not jax.tree.leaves(variables)


def test_learned_positions_are_rows_of_a_table():
    config = ModelConfig(d_model=D, max_length=T, positions="learned")
    got, variables = jax.device_get(initialised(config, SOME))
    table = variables["params"]["table"]
    assert table.shape == (T, D) and abs(table.std() * D**0.5 - 1) < 0.1
    assert np.array_equal(got, table[SOME])


def test_tables_have_the_dtype_of_the_computation():
    for kind in ("sinusoidal", "learned"):
        config = ModelConfig(d_model=D, max_length=T, positions=kind, dtype="bfloat16")
        run = partial(initialised, config, dtype=jnp.bfloat16)
        got, variables = jax.eval_shape(run, SOME)
        assert got.dtype == jnp.bfloat16
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


def test_a_kind_changes_only_what_its_class_says():
    """Embeddings, queries and scores; "none" changes none of them."""
    x, positions = jnp.ones((1, 2, D)), jnp.asarray([[0, 1]])
    heads = jnp.ones((1, 2, 2, K))
    changed = {}
    for kind in CHOICES["positions"]:
        module = make_positions(ModelConfig(d_model=D, num_heads=2, positions=kind), False)
        run = partial(module.init_with_output, jax.random.key(0))
        added, rotated, bias = (
            jax.eval_shape(partial(run, method="bias"), positions)[0] is not None
            if name == "bias"
            else run(array, positions, method=name)[0] is not array
            for name, array in (("add", x), ("rotate", heads), ("bias", None))
        )
        changed[kind] = added, rotated, bias
    assert changed == {
        "sinusoidal": (True, False, False),
        "learned": (True, False, False),
        "rotary": (False, True, False),
        "relative": (False, False, True),
        "alibi": (False, False, True),
        "none": (False, False, False),
    }
