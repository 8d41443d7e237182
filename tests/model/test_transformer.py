"""The wiring: dependencies between positions, packing, positions, dropout.

Axes: B batch · S source · T target · D model width · V vocabulary.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from seq2seq.model.config import CHOICES
from seq2seq.model.encoder_decoder import PairPositions
from seq2seq.model.layers import Dropout, Embedding
from seq2seq.model.transformer import Stack, Transformer
from tests.support.marks import slow_except
from tests.support.models.small_transformer import (
    BATCH,
    ONES,
    POSITION_IDS,
    POSITIONS,
    SMALL,
    SOURCE,
    TARGET,
    TARGET_LENGTHS,
    S,
    T,
    V,
    changed_ids,
    ids,
    jitted,
    variables_of,
    with_positions,
)

PRE_ROTARY = replace(SMALL, norm="pre", positions="rotary")


@pytest.mark.parametrize(
    "norm, positions",
    slow_except([("post", "sinusoidal")], [("post", "sinusoidal"), ("pre", "rotary")]),
)
def test_a_target_depends_on_its_own_source_and_its_own_past_only(norm, positions):
    config = replace(SMALL, norm=norm, positions=positions)
    weights = jnp.asarray(np.random.default_rng(0).standard_normal(V), jnp.float32)
    packed = jax.tree.map(lambda x: x[:1], BATCH)

    def summary(offsets, variables):
        """One number for each target position, with `offsets` added to the embeddings."""

        def add_offsets(following, args, kwargs, context):
            y = following(*args, **kwargs)
            embeds = isinstance(context.module, Embedding) and context.method_name == "__call__"
            return y + offsets[context.module.name] if embeds else y

        with nn.intercept_methods(add_offsets):
            return Transformer(config).apply(variables, *packed)[0] @ weights

    zeros = {"source_embedding": jnp.zeros((1, S, 30)), "target_embedding": jnp.zeros((1, T, 30))}
    gradients = jax.jit(jax.jacrev(summary))(zeros, variables_of(config))
    nonzero = {name: np.asarray((g != 0.0).any(axis=(1, 3))) for name, g in gradients.items()}
    source, target = SOURCE[1][0], TARGET[1][0]  # segments
    padding = (target == 0)[:, None]
    past = (target[:, None] == target) & np.tri(T, dtype=bool)
    # The gradient is exactly zero for padding, other pairs in the row, and the future.
    assert np.array_equal(
        nonzero["target_embedding"], np.where(padding, np.eye(T, dtype=bool), past)
    )
    assert np.array_equal(nonzero["source_embedding"], (target[:, None] == source) & ~padding)


@pytest.mark.parametrize("norm", CHOICES["norm"])
def test_logits_do_not_depend_on_future_targets_in_any_bit(norm):
    config = SMALL if norm == "post" else PRE_ROTARY
    logits, (source, target) = jitted(config), map(np.asarray, BATCH[:2])
    before = np.asarray(logits(source, target, *ONES, POSITION_IDS))
    for t in (1, 4, 12):
        changed = np.where(np.arange(T) < t, target, changed_ids(target))
        after = np.asarray(logits(source, changed, *ONES, POSITION_IDS))
        assert np.array_equal(before[:, :t], after[:, :t])
        assert np.all(np.any(before[:, t:] != after[:, t:], axis=-1))


def test_logits_do_not_depend_on_padding_and_other_pairs_in_any_bit():
    logits, batch = jitted(SMALL), jax.device_get(BATCH)
    segments, before = batch[2:4], np.asarray(logits(*batch))
    for row, segment in ((0, 1), (0, 2), (0, 3), (1, 1), (2, 1), (3, 1)):
        pair_places = [(of == segment) & (np.arange(4) == row)[:, None] for of in segments]
        changed = (
            np.where(here, x, changed_ids(x))
            for here, x in zip(pair_places, batch[:2], strict=True)
        )
        after = np.asarray(logits(*changed, *batch[2:]))
        same = pair_places[1]
        assert np.array_equal(before[same], after[same])
        assert np.all(np.any(before[~same] != after[~same], axis=-1))


def logits_with(positions):
    """The compiled model with this kind of positions."""
    return jitted(PRE_ROTARY if positions == "rotary" else with_positions(positions))


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_packed_row_gives_the_logits_of_its_pairs_in_separate_rows(positions):
    logits = np.asarray(logits_with(positions)(*BATCH))
    for i, length in enumerate(TARGET_LENGTHS, 1):
        np.testing.assert_allclose(logits[0][TARGET[1][0] == i], logits[i, :length], atol=2e-5)


def test_positions_start_at_zero_by_default():
    logits, inputs = jitted(SMALL), [*BATCH[:2], *ONES]
    usual = np.asarray(logits(*inputs))
    np.testing.assert_allclose(usual, logits(*inputs, POSITION_IDS), atol=1e-6)
    shifted = np.asarray(logits(*inputs, PairPositions(*(x + 3 for x in POSITION_IDS))))
    assert np.abs(shifted - usual).max() > 1e-2


def test_rotary_positions_are_relative_within_each_side():
    """The queries and keys of cross-attention are not rotated."""
    logits, inputs, (source, target) = jitted(PRE_ROTARY), [*BATCH[:2], *ONES], POSITION_IDS
    usual = logits(*inputs, POSITION_IDS)
    np.testing.assert_allclose(logits(*inputs, PairPositions(source, target + 5)), usual, atol=2e-5)
    np.testing.assert_allclose(logits(*inputs, PairPositions(source + 3, target)), usual, atol=2e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_logits_depend_on_the_order_of_the_source_only_through_positions(positions):
    source, order = np.asarray(BATCH[0]), np.array([3, 0, 6, 2, 10, 1, 5, 4, 9, 7, 8])
    usual, reordered = (
        np.asarray(logits_with(positions)(x, BATCH[1], *ONES, POSITION_IDS))
        for x in (source, source[:, order])
    )
    difference = np.abs(usual - reordered).max()
    assert difference < 1e-5 if positions == "none" else difference > 1e-2


# Dropout.

DROPPING = replace(SMALL, dropout=0.3, attention_dropout=0.2, activation_dropout=0.4)
SQUARE = (ids(3, T), ids(3, T, seed=1), *[jnp.asarray(np.ones((3, T), np.int32))] * 2, None)
ROW_IDS = jnp.asarray(np.array([11, 4, 8]))


@jax.jit
def apply_with_dropout(variables, key, row_ids, inputs):
    return Transformer(DROPPING).apply(variables, *inputs, row_ids, rngs={"dropout": key})


def dropped(key, row_ids=ROW_IDS, inputs=SQUARE):
    return np.asarray(apply_with_dropout(variables_of(DROPPING), key, row_ids, inputs))


def test_dropout_is_applied_with_a_key_and_the_same_key_gives_the_same_masks():
    plain = np.asarray(jitted(DROPPING)(*SQUARE))
    first, again, second = (dropped(jax.random.key(k)) for k in (1, 1, 2))
    assert np.array_equal(first, again)
    for a, b in combinations((plain, first, second), 2):
        assert np.abs(a - b).mean() > 0.05


def test_without_a_key_or_a_rate_there_is_no_dropout():
    model, rngs = Transformer(replace(SMALL, dropout=0.0)), {"dropout": jax.random.key(1)}
    keyed = jax.jit(partial(model.apply, rngs=rngs))(variables_of(SMALL), *SQUARE)
    assert np.array_equal(keyed, jitted(DROPPING)(*SQUARE))


def test_the_dropout_of_a_row_depends_on_its_row_id_and_not_on_its_place():
    key, order = jax.random.key(1), np.array([2, 0, 1])
    original = dropped(key)
    inputs = tuple(x if x is None else np.asarray(x)[order] for x in SQUARE)
    np.testing.assert_allclose(
        dropped(key, np.asarray(ROW_IDS)[order], inputs), original[order], atol=1e-5
    )
    renamed = dropped(key, np.array([11, 5, 8]))
    np.testing.assert_allclose(renamed[0], original[0], atol=1e-5)
    assert np.abs(renamed[1] - original[1]).mean() > 0.05


@cache
def dropout_masks(**changes):
    """The mask of each dropout module by path, with one layer of the encoder and two of the
    decoder."""
    config = replace(DROPPING, num_layers=1, **dict(num_decoder_layers=2) | changes)

    @jax.jit
    def masks(variables, key):
        seen = {}

        def record(following, args, kwargs, context):
            if not isinstance(context.module, Dropout) or context.method_name != "__call__":
                return following(*args, **kwargs)
            ones = jnp.ones_like(args[0])
            mask = following(ones, *args[1:], **kwargs) != 0
            seen["/".join(context.module.path)] = mask
            return args[0]

        with nn.intercept_methods(record):
            Transformer(config).apply(variables, *SQUARE, ROW_IDS, rngs={"dropout": key})
        return seen

    by_path = masks(variables_of(config), jax.random.key(1))
    return {path: np.asarray(mask) for path, mask in by_path.items()}


def test_every_place_of_dropout_has_its_rate_and_its_own_mask():
    seen = dropout_masks()
    parts = {"encoder": ("self", "feed_forward"), "decoder": ("self", "cross", "feed_forward")}
    rates = {f"{side}/dropout": 0.3 for side in parts}
    for side, i in (("encoder", 0), ("decoder", 0), ("decoder", 1)):
        layer = f"{side}/layers_{i}"
        rates |= {f"{layer}/around_{part}/dropout": 0.3 for part in parts[side]}
        rates |= {f"{layer}/{part}_attention/dropout": 0.2 for part in parts[side][:-1]}
        rates[f"{layer}/feed_forward/dropout"] = 0.4
    assert set(seen) == set(rates)
    for path, mask in seen.items():
        rate = rates[path]
        assert abs(mask.mean() - 1 + rate) < 5 * (rate * (1 - rate) / mask.size) ** 0.5, path
    for a, b in combinations(seen.values(), 2):
        size = min(a.size, b.size)
        correlation = np.corrcoef(a.ravel()[:size], b.ravel()[:size])[0, 1]
        assert abs(correlation) < 5.5 / size**0.5


def test_the_masks_of_dropout_do_not_depend_on_the_other_rates():
    """So runs from before there were attention and activation dropout resume with their masks."""
    plain = dropout_masks(attention_dropout=0.0, activation_dropout=0.0, num_decoder_layers=1)
    for path, mask in dropout_masks().items():
        if "layers_1/" in path:
            assert path not in plain
        elif "attention/" in path:
            assert path not in plain and not mask.all()
        elif "/feed_forward/" in path:
            assert plain[path].all() and not mask.all()
        else:
            assert np.array_equal(plain[path], mask)


def test_rematerialisation_changes_neither_loss_nor_gradients():
    """With dropout, whose masks are recomputed equally."""
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(3, T, 30)), jnp.float32)
    mask = jnp.asarray(np.tri(T, dtype=bool)[None, None])
    positions = jnp.asarray(np.tile(np.arange(T), (3, 1)))

    def loss(variables, key, remat):
        stack = Stack(replace(SMALL, dropout=0.3, remat=remat), 1)
        y, _ = stack.apply(variables, x, mask, positions, rngs={"dropout": key})
        return (y**3).mean()

    variables = {"params": variables_of(SMALL)["params"]["encoder"]}
    key = jax.random.key(2)
    step = jax.jit(jax.value_and_grad(loss), static_argnums=2)
    traced = [step.trace(variables, key, remat) for remat in (False, True)]
    (plain, gradients), (again, rematerialised) = (
        x.lower().compile()(variables, key) for x in traced
    )
    np.testing.assert_allclose(plain, again, rtol=1e-6)
    assert jax.tree.structure(gradients) == jax.tree.structure(rematerialised)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(rematerialised), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-4)
    programs = [str(x.jaxpr) for x in traced]
    assert ["checkpoint" in p or "remat" in p for p in programs] == [False, True]
