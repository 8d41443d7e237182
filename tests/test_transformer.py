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
from model.attention import to_cache
from model.config import CHOICES, ModelConfig, num_parameters
from model.layers import Dropout, Embedding
from model.transformer import Stack, Transformer
from model.translate import Reading, ancestry_mask, empty_caches, search_step

V, S, T = 41, 11, 13
POSITIONS = CHOICES["positions"]
# Three heads of ten; two-way tying tells source embeddings from target embeddings.
SMALL = ModelConfig(
    source_vocab_size=37, target_vocab_size=V, d_model=30, d_ff=43, num_heads=3, num_layers=1,
    max_length=17, tied_embeddings="two-way",
)


def ids(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(4, 37, shape), jnp.int32)


def others(ids):
    """Other ids at every place."""
    return (ids + 7) % 37


def shapes(config):
    one = jnp.ones((1, 2), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), one, one, one, one)["params"]


@cache
def variables_of(config):
    """Random parameters, biases and scales too: a zero or a one would hide what it is used for."""
    random = np.random.default_rng(3)

    def value(path, leaf):
        draw = random.standard_normal(leaf.shape)
        if path[-1].key == "scale":
            draw = 1.0 + 0.1 * draw
        elif path[-1].key.endswith("bias"):
            draw = 0.1 * draw
        else:
            draw = draw * config.d_model**-0.5
        return jnp.asarray(draw, leaf.dtype)

    return {"params": jax.tree_util.tree_map_with_path(value, shapes(config))}


@cache
def jitted(config, method="__call__"):
    """model.apply with parameters in place, compiled once for each shape of its inputs."""
    apply = jax.jit(partial(Transformer(config).apply, method=method))
    return partial(apply, variables_of(config))


# Row 0 packs three pairs and padding; rows 1 … 3 are the same pairs one by one, with padding.
SOURCE_LENGTHS, TARGET_LENGTHS = (4, 3, 2), (5, 1, 4)


def packed_and_single(lengths, size, seed):
    rows, segments, positions = np.zeros((3, 4, size), np.int32)
    rows[:] = ids(4, size, seed=seed)  # in the padding too
    start = 0
    for i, length in enumerate(lengths, 1):
        segments[0, start : start + length] = i
        positions[0, start : start + length] = range(length)
        rows[i, :length] = rows[0, start : start + length]
        segments[i, :length] = 1
        positions[i] = range(size)
        start += length
    return rows, segments, positions


SOURCE, TARGET = packed_and_single(SOURCE_LENGTHS, S, 1), packed_and_single(TARGET_LENGTHS, T, 2)
BATCH = [jnp.asarray(x) for sides in zip(SOURCE, TARGET, strict=True) for x in sides]
ONES = [jnp.ones_like(x) for x in BATCH[:2]]
ALONG = [jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape) for x in BATCH[:2]]


@pytest.mark.parametrize("norm, positions", [("post", "sinusoidal"), ("pre", "rotary")])
def test_a_target_sees_its_own_source_and_its_own_past_and_nothing_else(norm, positions):
    config = replace(SMALL, norm=norm, positions=positions, num_layers=2)
    weights = jnp.asarray(np.random.default_rng(0).standard_normal(V), jnp.float32)
    packed = [x[:1] for x in BATCH]

    def summary(nudges, variables):
        """One number for each target position, with `nudges` added to the embeddings."""

        def nudge(following, args, kwargs, context):
            y = following(*args, **kwargs)
            moved = isinstance(context.module, Embedding) and context.method_name == "__call__"
            return y + nudges[context.module.name] if moved else y

        with nn.intercept_methods(nudge):
            return Transformer(config).apply(variables, *packed)[0] @ weights

    zeros = {"source_embedding": jnp.zeros((1, S, 30)), "target_embedding": jnp.zeros((1, T, 30))}
    gradients = jax.jit(jax.jacrev(summary))(zeros, variables_of(config))
    touched = {name: np.asarray((g != 0.0).any(axis=(1, 3))) for name, g in gradients.items()}
    theirs, mine = SOURCE[1][0], TARGET[1][0]
    padding = (mine == 0)[:, None]
    past = (mine[:, None] == mine) & np.tri(T, dtype=bool)
    # Exactly zero elsewhere: padding, neighbours in the row and the future leave no trace.
    assert np.array_equal(
        touched["target_embedding"], np.where(padding, np.eye(T, dtype=bool), past)
    )
    assert np.array_equal(touched["source_embedding"], (mine[:, None] == theirs) & ~padding)


@pytest.mark.parametrize("norm", CHOICES["norm"])
def test_future_targets_do_not_matter_in_any_bit(norm):
    logits, (source, target) = jitted(replace(SMALL, norm=norm)), BATCH[:2]
    before = logits(source, target, *ONES, *ALONG)
    for t in (1, 4, 12):
        after = logits(source, target.at[:, t:].set(others(target[:, t:])), *ONES, *ALONG)
        assert np.array_equal(before[:, :t], after[:, :t])
        assert np.all(np.any(before[:, t:] != after[:, t:], axis=-1))


def test_padding_and_neighbours_do_not_matter_in_any_bit():
    logits, segments = jitted(SMALL), BATCH[2:4]
    before = logits(*BATCH)
    for row, segment in ((0, 1), (0, 2), (0, 3), (1, 1), (2, 1), (3, 1)):
        own = [(of == segment) & (jnp.arange(4) == row)[:, None] for of in segments]
        changed = (jnp.where(here, x, others(x)) for here, x in zip(own, BATCH[:2], strict=True))
        after = logits(*changed, *BATCH[2:])
        mine = np.asarray(own[1])
        assert np.array_equal(before[mine], after[mine])
        assert np.all(np.any(before[~mine] != after[~mine], axis=-1))


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_packed_row_gives_the_logits_of_its_pairs_one_by_one(positions):
    logits = jitted(replace(SMALL, positions=positions))(*BATCH)
    for i, length in enumerate(TARGET_LENGTHS, 1):
        np.testing.assert_allclose(
            logits[0][TARGET[1][0] == i], logits[i, :length], atol=2e-5
        )


def test_positions_count_from_zero_unless_they_are_given():
    logits, inputs = jitted(SMALL), [*BATCH[:2], *ONES]
    np.testing.assert_allclose(logits(*inputs), logits(*inputs, *ALONG), atol=1e-6)
    shifted = logits(*inputs, *(x + 3 for x in ALONG))
    assert np.abs(shifted - logits(*inputs)).max() > 1e-2


@pytest.mark.parametrize("positions", POSITIONS)
def test_only_positions_tell_the_encoder_about_order(positions):
    encode, segments = jitted(replace(SMALL, positions=positions), "encode"), ONES[0]
    source, order = BATCH[0], np.array([3, 0, 6, 2, 10, 1, 5, 4, 9, 7, 8])
    difference = np.abs(
        encode(source, segments)[:, order] - encode(source[:, order], segments)
    ).max()
    assert difference < 1e-5 if positions == "none" else difference > 1e-2


# Stepping. Random histories: every slot continues a random slot with a random token.

STEPS, BEAMS, SENTENCES = 7, 3, 2
STEPPING = [*product(CHOICES["norm"], POSITIONS, ["float32"]),
            *((norm, kind, dtype) for norm, kind, dtype in zip(
                ("post", "pre", "pre", "post") * 2, POSITIONS * 2,
                ("bfloat16",) * 4 + ("mixed",) * 4, strict=True))]


def random_histories():
    """tokens, parents [T, B, N] and ancestry [T, B, N, T], as `beam_search` hands them out."""
    random = np.random.default_rng(5)
    tokens = random.integers(0, V, (STEPS, SENTENCES, BEAMS))
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
    config = replace(SMALL, norm=norm, positions=positions, num_decoder_layers=2, dtype=dtype)
    model, variables = Transformer(config), variables_of(replace(config, dtype="float32"))
    tokens, parents, ancestry = random_histories()
    source = ids(SENTENCES, 5)
    segments = (jnp.arange(5) < jnp.array([[5], [3]])).astype(jnp.int32)

    @jax.jit
    def stepping(variables, histories):
        memory = model.apply(variables, source, segments, method="encode")
        memory = model.apply(variables, memory, method="memory_keys_values")
        caches = empty_caches(config, SENTENCES, STEPS * BEAMS)
        reading = Reading(tuple(map(to_cache, memory)), segments.sum(axis=1), caches)
        step = search_step(model, variables)

        def one(reading, inputs):
            t, tokens, parents, ancestry = inputs
            each = jnp.full(SENTENCES, t)
            logits, reading = step(tokens, reading, each, parents, ancestry)
            return reading, logits

        return jax.lax.scan(one, reading, histories)[1]

    # Teacher forcing of what each slot's ancestors got, for every slot of every step.
    target = np.zeros((*tokens.shape, STEPS), np.int32)
    for t, b, n in np.ndindex(tokens.shape):
        for s in range(t + 1):
            target[t, b, n, s] = tokens[s, b, ancestry[t, b, n, s]]
    target = jnp.asarray(target.reshape(-1, STEPS))
    sentence = np.tile(np.repeat(np.arange(SENTENCES), BEAMS), STEPS)
    forced = jax.jit(model.apply)(
        variables, source[sentence], target, segments[sentence], jnp.ones_like(target)
    )
    forced = forced.reshape(*tokens.shape, STEPS, V)

    histories = tuple(map(jnp.asarray, (np.arange(STEPS), tokens, parents, ancestry)))
    stepped = stepping(variables, histories)
    assert stepped.dtype == forced.dtype == jnp.float32
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    for t in range(STEPS):
        expected = forced[t, :, :, t]
        assert expected.std() > 0.5
        np.testing.assert_allclose(stepped[t], expected, atol=tolerance, rtol=tolerance)


def test_a_stack_without_memory_steps_through_its_cache_as_it_runs_at_once():
    config = replace(SMALL, norm="pre", positions="rotary", num_layers=2)
    stack, x = Stack(config, 2), jax.random.normal(jax.random.key(0), (SENTENCES, STEPS, 30))
    one_after_another = jnp.broadcast_to(jnp.arange(STEPS), x.shape[:2])
    mask = jnp.tril(jnp.ones((1, 1, STEPS, STEPS), bool))
    variables = jax.jit(stack.init)(jax.random.key(1), x, mask, one_after_another)
    layer = variables["params"]["layers_1"]
    assert {name for name in layer if "cross" in name} == set()

    def one(caches, t):
        ancestry = jnp.where(jnp.arange(STEPS) <= t, 0, -1)
        mask = ancestry_mask(jnp.broadcast_to(ancestry, (SENTENCES, 1, STEPS)))
        now, each = x[:, t][:, None], jnp.full(SENTENCES, t)
        y, caches = stack.apply(
            variables, now, mask, each[:, None], caches=caches, index=each
        )
        return caches, y[:, 0]

    caches = empty_caches(config, SENTENCES, STEPS)
    _, stepped = jax.jit(lambda c: jax.lax.scan(one, c, jnp.arange(STEPS)))(caches)
    at_once, _ = jax.jit(stack.apply)(variables, x, mask, one_after_another)
    np.testing.assert_allclose(jnp.swapaxes(stepped, 0, 1), at_once, atol=1e-5)


# Dropout.

DROPPING = replace(SMALL, dropout=0.3)
SQUARE = (ids(3, T), ids(3, T, seed=1), *[jnp.ones((3, T), jnp.int32)] * 2, None, None)
ROWS = jnp.array([11, 4, 8])


@jax.jit
def apply_with_dropout(variables, key, rows, inputs):
    return Transformer(DROPPING).apply(variables, *inputs, rows, rngs={"dropout": key})


def dropped(key, rows=ROWS, inputs=SQUARE):
    return apply_with_dropout(variables_of(DROPPING), key, rows, inputs)


def test_training_drops_and_the_same_key_drops_the_same():
    plain = jitted(DROPPING)(*SQUARE)
    first, again, other = (dropped(jax.random.key(k)) for k in (1, 1, 2))
    assert np.array_equal(first, again)
    for a, b in combinations((plain, first, other), 2):
        assert np.abs(a - b).mean() > 0.05


def test_without_a_key_or_a_rate_nothing_is_dropped():
    assert np.array_equal(jitted(DROPPING)(*SQUARE), jitted(replace(SMALL, dropout=0.0))(*SQUARE))
    model, rngs = Transformer(replace(SMALL, dropout=0.0)), {"dropout": jax.random.key(1)}
    keyed = jax.jit(partial(model.apply, rngs=rngs))(variables_of(SMALL), *SQUARE)
    assert np.array_equal(keyed, jitted(DROPPING)(*SQUARE))


def test_a_row_is_dropped_alike_wherever_it_stands_in_the_batch():
    key, order = jax.random.key(1), jnp.array([2, 0, 1])
    here = dropped(key)
    moved = dropped(key, ROWS[order], tuple(x if x is None else x[order] for x in SQUARE))
    np.testing.assert_allclose(moved, here[order], atol=1e-5)
    alone = dropped(key, ROWS[1:2], tuple(x if x is None else x[1:2] for x in SQUARE))
    np.testing.assert_allclose(alone[0], here[1], atol=1e-5)
    renamed = dropped(key, ROWS.at[1].set(5))
    np.testing.assert_allclose(renamed[0], here[0], atol=1e-5)
    assert np.abs(renamed[1] - here[1]).mean() > 0.05


def test_dropout_is_on_every_sublayer_s_output_and_on_the_embeddings_each_with_its_own_mask():
    config = replace(DROPPING, num_layers=2)

    @jax.jit
    def masks(variables, key):
        seen = {}

        def watch(following, args, kwargs, context):
            if not isinstance(context.module, Dropout) or context.method_name != "__call__":
                return following(*args, **kwargs)
            seen["/".join(context.module.path)] = following(jnp.ones_like(args[0]), *args[1:]) != 0
            return following(*args, **kwargs)

        with nn.intercept_methods(watch):
            Transformer(config).apply(variables, *SQUARE, rngs={"dropout": key})
        return seen

    seen = masks(variables_of(config), jax.random.key(1))
    seen = {path: np.asarray(mask) for path, mask in seen.items()}
    around = {"encoder": ("self", "feed_forward"), "decoder": ("self", "cross", "feed_forward")}
    assert set(seen) == {f"{side}/dropout" for side in around} | {
        f"{side}/layers_{i}/around_{what}/dropout"
        for side, parts in around.items() for i in range(2) for what in parts
    }
    assert all(abs(mask.mean() - 0.7) < 0.07 for mask in seen.values())
    for a, b in combinations(seen.values(), 2):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5.5 / a.size**0.5


def test_recomputing_activations_changes_neither_loss_nor_gradients():
    """With dropout: what is recomputed is dropped again alike."""
    def loss(variables, key, remat):
        model = Transformer(replace(DROPPING, remat=remat))
        logits = model.apply(variables, *SQUARE, rngs={"dropout": key})
        return -jax.nn.log_softmax(logits)[..., 5].mean()

    variables, key = variables_of(DROPPING), jax.random.key(2)
    step = jax.jit(jax.value_and_grad(loss), static_argnums=2)
    (plain, gradients), (again, others) = (step(variables, key, r) for r in (False, True))
    np.testing.assert_allclose(plain, again, rtol=1e-6)
    assert jax.tree.structure(gradients) == jax.tree.structure(others)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-4)
    programs = (str(jax.make_jaxpr(partial(loss, remat=r))(variables, key)) for r in (False, True))
    assert ["checkpoint" in p or "remat" in p for p in programs] == [False, True]


# Parameters.


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
    # Which table is read where: by the rows that have a gradient.
    ones, model = jnp.ones((1, 2), jnp.int32), Transformer(config)
    source, target = jnp.array([[5, 7]]), jnp.array([[11, 7]])

    def inputs(variables):
        hidden = model.apply(variables, source, target, ones, ones, method="hidden")
        return (hidden**3).sum()

    def outputs(variables):
        return (model.apply(variables, jnp.ones((1, 1, 30)), method="logits") ** 2).sum()

    def rows_read(function):
        tree = jax.jit(jax.grad(function))(variables_of(config))["params"]
        return {name: set(np.flatnonzero(tree[name]["table"].any(axis=1))) for name in tables}

    everything, embedded = set(range(V)), {
        "three-way": {"target_embedding": {5, 7, 11}},
        "two-way": {"target_embedding": {11, 7}, "source_embedding": {5, 7}},
        "none": {"target_embedding": {11, 7}, "source_embedding": {5, 7},
                 "output_embedding": set()},
    }[tied]
    assert rows_read(inputs) == embedded
    scores = "output_embedding" if tied == "none" else "target_embedding"
    assert rows_read(outputs) == {name: everything if name == scores else set() for name in tables}


def test_num_parameters_is_the_size_of_the_initialised_model_for_every_choice():
    for tied, bias, output_bias, norm, positions in product(
        CHOICES["tied_embeddings"], (False, True), (False, True), CHOICES["norm"], POSITIONS
    ):
        config = replace(
            SMALL, tied_embeddings=tied, attention_bias=bias, output_bias=output_bias, norm=norm,
            positions=positions, source_vocab_size=V if tied == "three-way" else 37,
        )
        config.validate()
        assert count(shapes(config)) == num_parameters(config), config
    for depths in ((3, 0), (1, 2), (2, 1)):
        config = replace(SMALL, num_layers=depths[0], num_decoder_layers=depths[1])
        assert count(shapes(config)) == num_parameters(config), config


@pytest.mark.parametrize("module, parameters", [(base, 63_045_632), (big, 214_171_648)])
def test_the_paper_s_models_have_the_paper_s_sizes(module, parameters):
    config = replace(
        module.get_config().model, source_vocab_size=37_000, target_vocab_size=37_000
    )
    config.validate()
    assert num_parameters(config) == parameters == count(shapes(config))


@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
def test_parameters_and_logits_are_float32_whatever_the_computation_is(dtype):
    config = replace(SMALL, dtype=dtype, output_bias=True, positions="learned")
    params = shapes(config)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    run = partial(jax.eval_shape, Transformer(config).apply, {"params": params})
    assert run(*BATCH).dtype == jnp.float32
    model = partial(Transformer(config).apply, method="hidden")
    assert jax.eval_shape(model, {"params": params}, *BATCH).dtype == config.values_dtype


def test_mixed_is_float32_but_for_the_products_with_weights():
    """Its distance from float32 is that of bfloat16's 8 bits; what is summed and kept is finer."""
    exact = jitted(SMALL)(*BATCH)
    far = {dtype: np.abs(jitted(replace(SMALL, dtype=dtype))(*BATCH) - exact).max() / exact.std()
           for dtype in ("mixed", "bfloat16")}
    assert 1e-4 < far["mixed"] < far["bfloat16"] < 0.2
    config = replace(SMALL, dtype="mixed", num_layers=2)
    shapes_of = jax.eval_shape(lambda: variables_of(config))
    text = jax.jit(Transformer(config).apply).lower(shapes_of, *BATCH).as_text()
    dots = [line.rpartition(" : ")[2] for line in text.splitlines() if "dot_general" in line]
    attentions = 2 * (1 + 2)
    assert sum("bf16" not in operands for operands in dots) == 2 * attentions  # Q Kᵀ, weights V
    assert sum(operands.count("xbf16>") == 2 and operands.endswith("xf32>") for operands in dots) \
        == 4 * attentions + 2 * 4 + 1  # projections, feed-forward, logits


def test_logits_are_the_hidden_states_times_the_target_embeddings_plus_the_bias():
    config = replace(SMALL, output_bias=True)
    params, hidden = variables_of(config)["params"], jitted(config, "hidden")(*BATCH)
    expected = hidden @ params["target_embedding"]["table"].T + params["output_bias"]
    np.testing.assert_allclose(jitted(config)(*BATCH), expected, atol=1e-5)


def test_scaled_embeddings_are_those_of_a_table_larger_by_the_root_of_d_model():
    scaled, flat = SMALL, replace(SMALL, scale_embeddings=False)
    encode = lambda config, variables: jax.jit(  # noqa: E731
        partial(Transformer(config).apply, method="encode")
    )(variables, BATCH[0], ONES[0])
    larger = jax.tree.map(jnp.array, variables_of(SMALL))
    larger["params"]["source_embedding"]["table"] *= 30**0.5
    expected = encode(scaled, variables_of(SMALL))
    np.testing.assert_allclose(encode(flat, larger), expected, atol=1e-5)
    assert np.abs(encode(flat, variables_of(SMALL)) - expected).max() > 1e-2
