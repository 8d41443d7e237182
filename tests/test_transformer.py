"""The wiring: what may influence what, packing, stepping = teacher forcing, dropout, tying, sizes.

Axes: B batch · S source · T target · D model width · N beams · V vocabulary.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from configs import base, big
from model.config import CHOICES, ModelConfig, num_parameters
from model.layers import Dropout, Embedding
from model.transformer import Transformer
from model.translate import empty_caches, search_step

V, T = 41, 13
POSITIONS = CHOICES["positions"]
# Three heads of ten; two-way tying tells source embeddings from target embeddings.
SMALL = ModelConfig(
    source_vocab_size=37, target_vocab_size=V, d_model=30, d_ff=43, num_heads=3, num_layers=2,
    max_length=17, tied_embeddings="two-way",
)


def ids(*shape, seed=0, vocab=37):
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(4, vocab, shape), jnp.int32)


@cache
def variables_of(config):
    """Parameters with every zero and one moved, so that nothing hides behind them."""
    fixed = replace(config, dropout=0.0, dtype="float32", remat=False)
    if fixed != config:
        return variables_of(fixed)
    one = jnp.ones((1, 2), jnp.int32)

    def init(key):
        variables = Transformer(config).init(key, one, one, one, one)
        leaves, tree = jax.tree.flatten(variables)
        keys = jax.random.split(key, len(leaves))
        return tree.unflatten(
            [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        )

    return jax.jit(init)(jax.random.key(3))


def apply(config, *args, **kwargs):
    return Transformer(config).apply(variables_of(config), *args, **kwargs)


# One packed row: three pairs and padding. Segments and positions of source and target.
LENGTHS = (4, 3, 2), (5, 1, 4)


def segments_and_positions(lengths, size):
    segments, positions = np.zeros((2, 1, size), np.int32)
    ends = np.cumsum(lengths)
    for i, (end, length) in enumerate(zip(ends, lengths, strict=True), 1):
        segments[0, end - length : end] = i
        positions[0, end - length : end] = range(length)
    return jnp.asarray(segments), jnp.asarray(positions)


S = 11
(SOURCE_SEGMENTS, SOURCE_POSITIONS), (TARGET_SEGMENTS, TARGET_POSITIONS) = (
    segments_and_positions(lengths, size) for lengths, size in zip(LENGTHS, (S, T), strict=True)
)
PACKED = (
    ids(1, S), ids(1, T), SOURCE_SEGMENTS, TARGET_SEGMENTS, SOURCE_POSITIONS, TARGET_POSITIONS
)


@pytest.mark.parametrize("norm, positions", [("post", "sinusoidal"), ("pre", "rotary")])
def test_a_target_sees_its_own_source_and_its_own_past_and_nothing_else(norm, positions):
    config = replace(SMALL, norm=norm, positions=positions)
    weights = jnp.asarray(np.random.default_rng(0).standard_normal(V), jnp.float32)

    def summary(nudges):
        """One number for each target position, with `nudges` added to the embeddings."""

        def nudge(following, args, kwargs, context):
            y = following(*args, **kwargs)
            moved = isinstance(context.module, Embedding) and context.method_name == "__call__"
            return y + nudges[context.module.name] if moved else y

        with nn.intercept_methods(nudge):
            return apply(config, *PACKED)[0] @ weights

    zeros = {f"{side}_embedding": jnp.zeros((1, n, 30)) for side, n in
             (("source", S), ("target", T))}
    gradients = jax.jit(jax.jacrev(summary))(zeros)
    touched = {name: np.asarray((g != 0.0).any(axis=(1, 3))) for name, g in gradients.items()}
    mine, theirs = np.asarray(TARGET_SEGMENTS[0]), np.asarray(SOURCE_SEGMENTS[0])
    same = (mine[:, None] == mine) & (mine[:, None] > 0) & np.tri(T, dtype=bool)
    # Exactly zero elsewhere: padding, neighbours in the row, and the future leave no trace.
    assert np.array_equal(touched["target_embedding"], same | np.eye(T, dtype=bool))
    assert np.array_equal(
        touched["source_embedding"], (mine[:, None] == theirs) & (mine[:, None] > 0)
    )


@pytest.mark.parametrize("norm", CHOICES["norm"])
def test_future_targets_do_not_matter_in_any_bit(norm):
    config = replace(SMALL, norm=norm)
    one = jnp.ones((3, 7), jnp.int32)
    logits = jax.jit(lambda target: apply(config, ids(3, 7, seed=1), target, one, one))
    target = ids(3, 7, vocab=V)
    before = logits(target)
    for t in (1, 4, 6):
        after = logits(target.at[:, t:].set(ids(3, 7 - t, seed=2, vocab=V)))
        assert np.array_equal(before[:, :t], after[:, :t])
        assert np.all(np.any(before[:, t:] != after[:, t:], axis=-1))


def test_padding_and_packed_neighbours_do_not_matter_in_any_bit():
    logits = jax.jit(lambda s, t: apply(SMALL, s, t, *PACKED[2:])[0])
    source, target = PACKED[:2]
    before = logits(source, target)
    for segment in (1, 2, 3):
        mine = np.asarray(TARGET_SEGMENTS[0] == segment)
        others = (jnp.where(of == segment, x, ids(*x.shape, seed=7))
                  for x, of in ((source, SOURCE_SEGMENTS), (target, TARGET_SEGMENTS)))
        after = logits(*others)
        assert np.array_equal(before[mine], after[mine])
        assert not np.any(np.all(before[~mine] == after[~mine], axis=-1))


def test_neighbours_in_the_batch_do_not_matter_in_any_bit():
    one = jnp.ones((3, 7), jnp.int32)
    logits = jax.jit(lambda source, target: apply(SMALL, source, target, one, one))
    source, target = ids(3, 7), ids(3, 7, seed=1)
    before, after = (logits(s, t) for s, t in (
        (source, target), (source.at[1:].set(5), target.at[1:].set(9))
    ))
    assert np.array_equal(before[0], after[0])


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_packed_row_gives_the_logits_of_its_pairs_one_by_one(positions):
    config = replace(SMALL, positions=positions)
    packed = jax.jit(lambda: apply(config, *PACKED))()[0]
    # The pairs one by one: rows of their own, padded to one shape, positions left to the model.
    alone = [np.zeros((3, max(lengths)), np.int32) for lengths in LENGTHS * 2]
    for i in range(3):
        for row, whole, of, length in zip(alone, PACKED[:2] * 2, PACKED[2:4] * 2,
                                          [side[i] for side in LENGTHS * 2], strict=True):
            row[i, :length] = whole[of == i + 1]
    for row, lengths in zip(alone[2:], LENGTHS, strict=True):
        row[:] = np.arange(row.shape[1]) < np.array(lengths)[:, None]
    single = jax.jit(lambda: apply(config, *map(jnp.asarray, alone)))()
    for i, length in enumerate(LENGTHS[1]):
        mine = np.asarray(TARGET_SEGMENTS[0] == i + 1)
        np.testing.assert_allclose(packed[mine], single[i, :length], atol=2e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_only_positions_tell_the_encoder_about_order(positions):
    config = replace(SMALL, positions=positions)
    segments = jnp.ones((2, 7), jnp.int32)
    encode = jax.jit(lambda source: apply(config, source, segments, method="encode"))
    source, order = ids(2, 7, seed=4), np.array([3, 0, 6, 2, 1, 5, 4])
    difference = np.abs(encode(source)[:, order] - encode(source[:, order])).max()
    assert difference < 1e-5 if positions == "none" else difference > 1e-2


# Stepping. Random histories: every slot continues a random slot with a random token.

STEPS, BEAMS, SENTENCES = 7, 3, 2
STEPPING = [*product(CHOICES["norm"], POSITIONS, ["float32"]),
            *product(["post"], POSITIONS, ["bfloat16"]), ("pre", "rotary", "bfloat16")]


def random_histories():
    """tokens, parents [T, B, N] and ancestry [T, B, N, T], as `beam_search` hands them out."""
    random = np.random.default_rng(5)
    tokens = random.integers(4, V, (STEPS, SENTENCES, BEAMS))
    tokens[0] = SMALL.start_id
    parents = random.integers(0, BEAMS, tokens.shape)
    ancestry = np.full((STEPS, SENTENCES, BEAMS, STEPS), -1)
    for t, b, n in np.ndindex(tokens.shape):
        if t:
            ancestry[t, b, n] = ancestry[t - 1, b, parents[t, b, n]]
        ancestry[t, b, n, t] = n
    return tokens, parents, ancestry


@pytest.mark.parametrize("norm, positions, dtype", STEPPING)
def test_stepping_with_the_cache_is_teacher_forcing(norm, positions, dtype):
    config = replace(SMALL, norm=norm, positions=positions, dtype=dtype)
    model, variables = Transformer(config), variables_of(config)
    tokens, parents, ancestry = random_histories()
    source = ids(SENTENCES, 5)
    segments = (jnp.arange(5) < jnp.array([[5], [3]])).astype(jnp.int32)

    @jax.jit
    def stepping():
        memory = apply(config, source, segments, method="encode")
        memory = apply(config, memory, method="memory_keys_values")
        step = search_step(model, variables, memory, (segments > 0)[:, None, None])

        def one(caches, inputs):
            t, *inputs = inputs
            logits, caches = step(inputs[0], caches, t, *inputs[1:])
            return caches, logits

        caches = empty_caches(model, SENTENCES, STEPS * BEAMS)
        histories = map(jnp.asarray, (np.arange(STEPS), tokens, parents, ancestry))
        return jax.lax.scan(one, caches, tuple(histories))[1]

    # Teacher forcing of what each slot's ancestors got, for every slot of every step.
    target = np.zeros((STEPS, SENTENCES, BEAMS, STEPS), np.int32)
    for t, b, n in np.ndindex(tokens.shape):
        for s in range(t + 1):
            target[t, b, n, s] = tokens[s, b, ancestry[t, b, n, s]]
    target = target.reshape(-1, STEPS)
    sentence = np.tile(np.repeat(np.arange(SENTENCES), BEAMS), STEPS)

    @jax.jit
    def forcing():
        logits = apply(config, source[sentence], jnp.asarray(target), segments[sentence],
                       jnp.ones(target.shape, jnp.int32))
        logits = logits.reshape(STEPS, SENTENCES, BEAMS, STEPS, V)
        return logits[np.arange(STEPS), :, :, np.arange(STEPS)]

    tolerance = {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
    got, expected = stepping(), forcing()
    scale = max(1.0, float(np.abs(expected).max()))
    assert got.dtype == jnp.float32 and expected.std() > 0.3
    np.testing.assert_allclose(got, expected, atol=tolerance * scale)


# Dropout.

DROPPING = replace(SMALL, dropout=0.3)
SQUARE = (ids(3, 13), ids(3, 13, seed=1), *[jnp.ones((3, 13), jnp.int32)] * 2)


@cache
def with_dropout(config):
    return jax.jit(lambda key, rows=None, inputs=SQUARE: apply(
        config, *inputs, rows=rows, rngs={"dropout": key}
    ))


def test_training_drops_and_the_same_key_drops_the_same():
    plain = jax.jit(lambda: apply(DROPPING, *SQUARE))()
    first, again, other = (with_dropout(DROPPING)(jax.random.key(k)) for k in (1, 1, 2))
    assert np.array_equal(first, again)
    for a, b in combinations((plain, first, other), 2):
        assert np.abs(a - b).mean() > 0.05
    none = jax.jit(lambda key: apply(SMALL, *SQUARE, rngs={"dropout": key}))
    assert np.array_equal(jax.jit(lambda: apply(SMALL, *SQUARE))(), none(jax.random.key(1))) == (
        SMALL.dropout == 0.0
    )


def test_a_row_is_dropped_alike_wherever_it_stands_in_the_batch():
    key, order = jax.random.key(1), jnp.array([2, 0, 1])
    here = with_dropout(DROPPING)(key, jnp.array([11, 4, 8]))
    moved = with_dropout(DROPPING)(key, jnp.array([8, 11, 4]), tuple(x[order] for x in SQUARE))
    np.testing.assert_allclose(moved, here[order], atol=1e-5)
    alone = with_dropout(DROPPING)(key, jnp.array([4]), tuple(x[1:2] for x in SQUARE))
    np.testing.assert_allclose(alone[0], here[1], atol=1e-5)
    renamed = with_dropout(DROPPING)(key, jnp.array([11, 5, 8]))
    assert np.abs(renamed[1] - here[1]).mean() > 0.05


def test_dropout_is_on_every_sublayer_s_output_and_on_the_embeddings_each_with_its_own_mask():
    @jax.jit
    def masks(key):
        seen = {}

        def watch(following, args, kwargs, context):
            if not isinstance(context.module, Dropout) or context.method_name != "__call__":
                return following(*args, **kwargs)
            seen["/".join(context.module.path)] = following(jnp.ones_like(args[0]), *args[1:]) != 0
            return following(*args, **kwargs)

        with nn.intercept_methods(watch):
            apply(DROPPING, *SQUARE, rngs={"dropout": key})
        return seen

    seen = {path: np.asarray(mask) for path, mask in masks(jax.random.key(1)).items()}
    around = {"encoder": ("self", "feed_forward"), "decoder": ("self", "cross", "feed_forward")}
    assert set(seen) == {f"{side}/dropout" for side in around} | {
        f"{side}/layers_{i}/around_{what}/dropout"
        for side, parts in around.items() for i in range(2) for what in parts
    }
    assert all(abs(mask.mean() - 0.7) < 0.07 for mask in seen.values())
    for a, b in combinations(seen.values(), 2):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5.5 / a.size**0.5


@pytest.mark.parametrize("norm", CHOICES["norm"])
def test_recomputing_activations_changes_neither_loss_nor_gradients(norm):
    def loss(variables, remat, key):
        model = Transformer(replace(DROPPING, norm=norm, remat=remat))
        logits = model.apply(variables, *SQUARE, rngs={"dropout": key})
        return -jax.nn.log_softmax(logits)[..., 5].mean()

    variables, key = variables_of(replace(DROPPING, norm=norm)), jax.random.key(2)
    step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    (plain, gradients), (again, others) = step(variables, False, key), step(variables, True, key)
    np.testing.assert_allclose(plain, again, rtol=1e-6)
    assert jax.tree.structure(gradients) == jax.tree.structure(others)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-4)
    recomputed = jax.make_jaxpr(jax.grad(partial(loss, remat=True, key=key)))(variables)
    assert "remat" in str(recomputed) or "checkpoint" in str(recomputed)


# Parameters.


def shapes(config):
    one = jnp.ones((1, 2), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), one, one, one, one)["params"]


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("tied, tables", [
    ("three-way", {"target_embedding"}),
    ("two-way", {"target_embedding", "source_embedding"}),
    ("none", {"target_embedding", "source_embedding", "output_embedding"}),
])
def test_tying_shares_the_tables_it_names(tied, tables):
    config = replace(SMALL, source_vocab_size=V if tied == "three-way" else 37,
                     tied_embeddings=tied)
    tree = shapes(config)
    assert {name for name in tree if name.endswith("embedding")} == tables
    assert set(tree) - tables == {"encoder", "decoder"}
    for name in tables:
        rows = 37 if name == "source_embedding" else V
        assert jax.tree.map(jnp.shape, tree[name]) == {"table": (rows, 30)}
    # Which table is read where: by the tokens whose rows have a gradient.
    one = jnp.ones((1, 2), jnp.int32)
    source, target = jnp.array([[5, 7]]), jnp.array([[11, 7]])

    @jax.jit
    def used(params):
        def inputs(params):
            hidden = apply_with(params, source, target, one, one, method="hidden")
            return (hidden**3).sum()

        apply_with = lambda params, *a, **k: Transformer(config).apply({"params": params}, *a, **k)  # noqa: E731
        outputs = lambda p: (apply_with(p, jnp.ones((1, 1, 30)), method="logits") ** 2).sum()  # noqa: E731
        return jax.grad(inputs)(params), jax.grad(outputs)(params)

    inputs, outputs = used(variables_of(config)["params"])
    rows_of = lambda tree, name: set(np.flatnonzero(tree[name]["table"].any(axis=1)))  # noqa: E731
    if tied == "three-way":
        assert rows_of(inputs, "target_embedding") == {5, 7, 11}
    else:
        assert rows_of(inputs, "source_embedding") == {5, 7}
        assert rows_of(inputs, "target_embedding") == {11, 7}
        assert not rows_of(outputs, "source_embedding")
    scores = "output_embedding" if tied == "none" else "target_embedding"
    assert rows_of(outputs, scores) == set(range(V))
    if tied == "none":
        assert not rows_of(inputs, scores) and not rows_of(outputs, "target_embedding")


def test_num_parameters_is_the_size_of_the_initialised_model_for_every_choice():
    for tied, bias, output_bias, norm, positions in product(
        CHOICES["tied_embeddings"], (False, True), (False, True), CHOICES["norm"], POSITIONS
    ):
        config = replace(
            SMALL, tied_embeddings=tied, attention_bias=bias, output_bias=output_bias, norm=norm,
            positions=positions, num_layers=1, num_decoder_layers=2,
            source_vocab_size=V if tied == "three-way" else 37,
        )
        config.validate()
        assert count(shapes(config)) == num_parameters(config), config


@pytest.mark.parametrize("module, parameters", [(base, 63_045_632), (big, 214_171_648)])
def test_the_paper_s_models_have_the_paper_s_sizes(module, parameters):
    config = replace(
        module.get_config().model, source_vocab_size=37_000, target_vocab_size=37_000
    )
    config.validate()
    assert num_parameters(config) == parameters == count(shapes(config))


def test_parameters_and_logits_are_float32_whatever_the_computation_is():
    config = replace(SMALL, dtype="bfloat16", output_bias=True, positions="learned")
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shapes(config)))
    run = partial(apply, config)
    assert jax.eval_shape(run, *PACKED).dtype == jnp.float32
    assert jax.eval_shape(partial(run, method="hidden"), *PACKED).dtype == jnp.bfloat16


def test_logits_are_the_hidden_states_times_the_target_embeddings_plus_the_bias():
    config = replace(SMALL, output_bias=True)
    params = variables_of(config)["params"]
    hidden = jax.jit(partial(apply, config, method="hidden"))(*PACKED)
    expected = hidden @ params["target_embedding"]["table"].T + params["output_bias"]
    np.testing.assert_allclose(jax.jit(partial(apply, config))(*PACKED), expected, atol=1e-5)


def test_scaled_embeddings_are_larger_by_the_root_of_d_model_and_unscaled_ones_are_not():
    source, segments = ids(1, 5), jnp.ones((1, 5), jnp.int32)
    flat = replace(SMALL, scale_embeddings=False)
    variables = variables_of(flat)
    larger = jax.tree.map(jnp.array, variables)
    larger["params"]["source_embedding"]["table"] *= 30**0.5
    encode = lambda config, v: jax.jit(  # noqa: E731
        partial(Transformer(config).apply, method="encode"))(v, source, segments)
    np.testing.assert_allclose(encode(flat, larger), encode(SMALL, variables), atol=1e-5)
    assert np.abs(encode(flat, variables) - encode(SMALL, variables)).max() > 1e-2
