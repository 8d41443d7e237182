"""The RNNs against PyTorch, NumPy, teacher forcing and a slow search, and what reaches the decoder.

Axes: B batch · S source · T target · N beams · D model width · V vocabulary.
"""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from seq2seq.model.config import TRANSFORMER_ONLY, ModelConfig, num_parameters
from seq2seq.model.encoder_decoder import DecoderState
from seq2seq.model.gru import Gru, GruParams, gru, gru_cell, segment_starts
from seq2seq.model.kinds import make_model
from seq2seq.model.layers import Dropout
from seq2seq.model.rnn import (
    AdditiveAttentionParams,
    DecoderLayer,
    RnnDecoder,
    RnnEncoder,
    additive_attention,
    context_vectors,
)
from seq2seq.model.search.scoring import GivenPairs, score_targets
from tests.support.marks import slow_except
from tests.support.models.small_transformer import (
    BATCH,
    SOURCE_LENGTHS,
    TARGET_LENGTHS,
    S,
    V,
    ids,
    jitted,
    variables_of,
)

D, STEPS, BEAMS, SENTENCES = 30, 5, 3, 2
KINDS = ("rnn", "rnn_attention")
END = 2


def small(kind, **options):
    sizes = dict(source_vocab_size=37, target_vocab_size=V, d_model=D, max_length=17)
    return ModelConfig(kind=kind, num_layers=2, tied_embeddings="two-way", **{**sizes, **options})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# Functions.


def gru_params():
    """Five inputs, states of three."""
    return GruParams(*map(jnp.asarray, (normal(5, 3, 3), normal(3, 3, 3), normal(3, 3), normal(3))))


def test_a_gru_cell_equals_the_equations_in_numpy():
    x, h, params = normal(4, 5), normal(4, 3), gru_params()
    w, u = (np.moveaxis(np.asarray(p), 1, 0) for p in (params.input, params.recurrent))
    projected = jnp.asarray(np.stack([x @ weights for weights in w], axis=1))
    new_state = jax.jit(gru_cell)(params, projected, jnp.asarray(h))
    r, z = (sigmoid(x @ w[i] + h @ u[i]) for i in (0, 1))
    n = np.tanh(x @ w[2] + r * (h @ u[2] + params.recurrent_bias))
    np.testing.assert_allclose(new_state, (1 - z) * n + z * h, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_gru_starts_each_segment_from_its_initial_state(reverse):
    params = gru_params()
    segments = jnp.asarray(np.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2]]))
    x, initial = normal(2, 6, 5), normal(2, 6, 3)

    @jax.jit
    def run(x, initial):
        return gru(params, x, segment_starts(segments, reverse), initial, reverse)

    states, cell, (weight, _, bias, _) = run(x, initial), jax.jit(gru_cell), params
    for row, first, after in [(0, 0, 2), (0, 2, 5), (1, 0, 4), (1, 4, 6)]:
        alone, begin = x[row : row + 1, first:after], after - 1 if reverse else first
        h = initial[row : row + 1, begin]
        for t in range(after - first)[:: -1 if reverse else 1]:
            h = cell(params, np.tensordot(alone[:, t], weight, 1) + np.asarray(bias), h)
            np.testing.assert_allclose(states[row, first + t], h[0], rtol=1e-5, atol=1e-6)


def test_additive_attention_equals_numpy_and_a_query_without_keys_gets_0():
    weights = normal(4, 4), normal(4, 4, seed=1), normal(4)
    params = AdditiveAttentionParams(*map(jnp.asarray, weights))
    query, key, score = weights
    queries, states = normal(2, 3, 4), normal(2, 5, 4)
    mask = np.random.default_rng(0).random((2, 3, 5)) < 0.6
    mask[0, 1], mask[1, 2] = False, True

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def run(queries):
        arguments = map(jnp.asarray, (states @ key, states, mask))
        results = additive_attention(params, queries, *arguments)
        return results[0].sum(), results

    gradient, (context, weights) = run(queries)
    for b, n in np.ndindex(2, 3):
        inner = np.tanh(queries[b, n] @ query + states[b] @ key)
        exponentials = np.exp(inner @ score) * mask[b, n]
        expected = exponentials / max(exponentials.sum(), 1e-9)
        np.testing.assert_allclose(weights[b, n], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(context[b, n], expected @ states[b], rtol=1e-5, atol=1e-5)
    assert (weights[0, 1] == 0).all() and (context[0, 1] == 0).all()
    assert np.isfinite(gradient).all()


def test_the_context_is_the_last_state_and_the_first_one_of_the_backward_direction():
    states, segments = normal(1, 6, 4), np.array([[1, 1, 1, 2, 2, 0]])
    run = jax.jit(context_vectors, static_argnames="both_directions")
    arguments = states, segments, np.array([[1, 2, 2]])
    np.testing.assert_array_equal(run(*arguments)[0], states[0, [2, 4, 4]])
    both = run(*arguments, both_directions=True)
    np.testing.assert_array_equal(both[0, :, :2], states[0, [2, 4, 4], :2])
    np.testing.assert_array_equal(both[0, :, 2:], states[0, [0, 3, 3], 2:])


# The encoder and PyTorch.


@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_equals_torch_nn_gru_with_copied_weights(kind):
    torch = pytest.importorskip("torch")
    config, source = small(kind), ids(3, 7)
    params = variables_of(config)["params"]
    both = kind == "rnn_attention"
    theirs = torch.nn.GRU(D, D // (1 + both), 2, batch_first=True, bidirectional=both)
    for layer in range(2):
        for direction, suffix in (("forward", ""), ("backward", "_reverse"))[: 1 + both]:
            weights = jax.tree.map(np.array, params["encoder"][f"{direction}_{layer}"])
            zeros = np.zeros_like(weights["input_bias"][:2])
            values = {
                "weight_ih": weights["input"].reshape(D, -1).T,
                "weight_hh": weights["recurrent"].reshape(D // (1 + both), -1).T,
                "bias_ih": weights["input_bias"].reshape(-1),
                "bias_hh": np.concatenate([*zeros, weights["recurrent_bias"]]),
            }
            for name, value in values.items():
                getattr(theirs, f"{name}_l{layer}{suffix}").data = torch.tensor(value)
    table = np.array(params["source_embedding"]["table"])
    with torch.no_grad():
        expected, _ = theirs(torch.tensor(table[source] * D**0.5))
    encoded = jitted(config, "states")(source, jnp.ones_like(source))
    np.testing.assert_allclose(encoded, expected.numpy(), rtol=1e-4, atol=1e-5)


# Teacher forcing.


@cache
def decoded(kind):
    """The encoder's states of BATCH, and a function of states with two results: the gradient of the
    outputs of the second pair in row 0, and the outputs of the decoder."""
    config = small(kind)
    model, variables, start = make_model(config), variables_of(config), TARGET_LENGTHS[0]
    source, target, *segments = BATCH[:4]

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def run(states):
        inputs = states, segments[0], target, segments[1]
        outputs = model.apply(variables, *inputs, method="decode")
        return (outputs[0, start : start + TARGET_LENGTHS[1]] ** 2).sum(), outputs

    states = np.array(jitted(config, "states")(source, segments[0]))
    return states, lambda states: jax.device_get(run(states))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_pairs_have_the_results_of_the_same_pairs_in_rows_of_their_own(kind):
    states, run = decoded(kind)
    packed_and_single = run(states)[1]
    start = 0
    for row, length in enumerate(TARGET_LENGTHS, 1):
        alone, packed = packed_and_single[row, :length], packed_and_single[0, start:][:length]
        np.testing.assert_allclose(packed, alone, rtol=1e-5, atol=1e-5)
        assert alone.std() > 0.1
        start += length


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", slow_except(["float32"], ["float32", "mixed", "bfloat16"]))
def test_stepping_equals_teacher_forcing_for_any_parents(kind, dtype):
    config = small(kind, dtype=dtype)
    model, variables = make_model(config), variables_of(small(kind))
    random = np.random.default_rng(5)
    tokens = random.integers(0, V, (STEPS, SENTENCES, BEAMS))
    parents = random.integers(0, BEAMS, tokens.shape)
    paths = np.zeros((STEPS, SENTENCES, BEAMS, STEPS), np.int32)
    for t, b, n in np.ndindex(tokens.shape):
        if t:
            paths[t, b, n] = paths[t - 1, b, parents[t, b, n]]
        paths[t, b, n, t] = tokens[t, b, n]
    source = np.asarray(ids(SENTENCES, 6))
    segments = (np.arange(6) < np.array([[6], [3]])).astype(np.int32)

    @jax.jit
    def stepping(variables, source, segments):
        encoded = model.apply(variables, source, segments, method="encode")
        memory = model.apply(variables, encoded, method="memory")
        stale = (jnp.full((SENTENCES, BEAMS, D), 7.0, config.values_dtype),) * 2
        ancestry = jnp.full((SENTENCES, BEAMS, STEPS), -1)  # an RNN does not use it

        def one_step(state, inputs):
            t, tokens, parents = inputs
            times = jnp.full(SENTENCES, t)
            logits, state = model.apply(
                variables, tokens, state, times, parents, ancestry, method="step"
            )
            return state, logits

        start = DecoderState(memory, segments.sum(1), stale)
        return jax.lax.scan(one_step, start, (jnp.arange(STEPS), tokens, parents))[1]

    target = paths.reshape(-1, STEPS)
    sentence = np.tile(np.repeat(np.arange(SENTENCES), BEAMS), STEPS)
    forced = jax.jit(model.apply)(
        variables, source[sentence], target, segments[sentence], np.ones_like(target)
    )
    forced = np.asarray(forced).reshape(*tokens.shape, STEPS, V)
    stepped = np.asarray(stepping(variables, source, segments))
    assert stepped.dtype == forced.dtype == jnp.float32
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    for t in range(STEPS):
        assert forced[t, :, :, t].std() > 0.1
        np.testing.assert_allclose(stepped[t], forced[t, :, :, t], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_float32_have_full_precision_on_a_tpu(kind):
    traced = jax.jit(make_model(small(kind)).apply).trace(variables_of(small(kind)), *BATCH[:4])
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    dots = [line for line in text.split("\n") if "stablehlo.dot_general" in line]
    assert len(dots) > 5 and all("precision = [HIGHEST, HIGHEST]" in dot for dot in dots)
    assert "f64>" not in text


def test_the_context_vector_is_the_only_path_from_the_encoder_to_the_decoder():
    """The control is attention, with which every state of a pair has a gradient."""
    lasts, inside = np.cumsum(SOURCE_LENGTHS) - 1, sum(SOURCE_LENGTHS)
    for kind in KINDS:
        states, run = decoded(kind)
        gradient, usual = run(states)
        gradient = np.abs(gradient).sum(axis=2)
        reached = set(np.flatnonzero(gradient[0]))
        its_states = range(SOURCE_LENGTHS[0], SOURCE_LENGTHS[0] + SOURCE_LENGTHS[1])
        assert reached == ({lasts[1]} if kind == "rnn" else set(its_states)), kind
        assert (gradient[1:] == 0).all()
        # Without the contexts nothing of the source is left.
        blocked, random_states = states.copy(), normal(*states.shape)
        blocked[0, lasts] = random_states[0, lasts] = 0.0
        outputs = [
            x[0, : sum(TARGET_LENGTHS)] for x in (run(blocked)[1], run(random_states)[1], usual)
        ]
        assert (outputs[0] == outputs[1]).all() == (kind == "rnn")
        assert np.abs(outputs[0] - outputs[2]).max() > 1e-2
        assert inside < states.shape[1]  # row 0 has padding


@pytest.mark.parametrize("kind", slow_except(["rnn_attention"], KINDS))
def test_dropout_depends_on_the_row_id_only(kind):
    config = small(kind, dropout=0.3)
    apply = partial(make_model(config).apply, variables_of(config), method="hidden")

    @jax.jit
    def run(row_ids, *batch):
        return apply(*batch, None, row_ids, rngs={"dropout": jax.random.key(0)})

    batch = [np.concatenate([x[1:3], x[1:3]]) for x in map(np.asarray, BATCH[:4])]
    hidden = np.asarray(run(np.array([5, 6, 7, 5]), *batch))
    again = np.asarray(run(np.array([0, 7, 5, 6]), *[x[[1, 0, 0, 1]] for x in batch]))
    np.testing.assert_allclose(hidden[[2, 0, 1]], again[[1, 2, 3]], rtol=1e-5)
    assert np.abs(hidden[0] - hidden[2]).max() > 1e-2  # equal pairs in rows 5 and 7


@pytest.mark.parametrize("kind", KINDS)
def test_in_mixed_all_weights_are_multiplied_in_bfloat16(kind):
    """Only the weights of the attention are multiplied with values that are no weights."""
    config = small(kind, dtype="mixed")
    shapes = jax.eval_shape(lambda: variables_of(config))
    text = jax.jit(make_model(config).apply).lower(shapes, *BATCH[:4]).as_text()
    dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    weights = [line.rpartition(" : ")[2] for line in dots if "batching_dims" not in line]
    assert all(operands.count("xbf16>") == 2 for operands in weights)
    # In each of 2 layers: inputs and states; initial states, logits. With attention: the backward
    # direction; query, key, score and context; the output layer.
    assert len(weights) == (8 + 2 + (4 + 4 + 1) * config.attends)


def test_the_initial_states_equal_the_equation_in_numpy():
    config = small("rnn")
    variables = variables_of(config)
    context = normal(2, 3, D)

    def initial_states(model, context):
        return model.decoder.initial_states(context)

    states = make_model(config).apply(variables, jnp.asarray(context), method=initial_states)
    weight = variables["params"]["decoder"]["initial"]
    bias = variables["params"]["decoder"]["initial_bias"]
    for layer in range(2):
        expected = np.tanh(context @ np.asarray(weight[:, layer]) + np.asarray(bias[layer]))
        np.testing.assert_allclose(states[:, :, layer], expected, atol=1e-5)


def test_initial_weights_of_each_gate_are_uniform_or_orthogonal():
    """Uniform by Glorot and Bengio 2010 (equation 16) for inputs, orthogonal for states; those of
    the attention's scores keep the variance of a sum of D values."""
    width = 120
    config = replace(small("rnn_attention", d_model=width), num_layers=1)
    init = partial(make_model(config).init, jax.random.key(0), method="decode")
    states, target = jnp.zeros((4, S, width)), BATCH[1]
    params = jax.device_get(jax.jit(init)(states, BATCH[2], target, BATCH[3]))["params"]
    layer = params["decoder"]["layers_0"]
    bound = (6 / (width + width)) ** 0.5
    for weight in (layer["gru"]["input"], layer["context"], params["decoder"]["initial"]):
        for gate in np.moveaxis(weight, 1, 0):
            assert 0.99 * bound < np.abs(gate).max() <= bound
            assert gate.std() == pytest.approx(bound / 3**0.5, rel=0.03)
    gates = np.moveaxis(layer["gru"]["recurrent"], 1, 0)
    for gate in gates:
        np.testing.assert_allclose(gate.T @ gate, np.eye(width), atol=1e-5)
    assert all(np.abs(gates[i] - gates[j]).max() > 0.1 for i, j in ((0, 1), (0, 2), (1, 2)))
    assert layer["cross_attention"]["score"].std() == pytest.approx(width**-0.5, rel=0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_applied_to_the_inputs_of_all_layers_and_to_the_output_of_the_last(kind):
    config, dropped, read = small(kind, dropout=0.3), [], []
    variables = variables_of(config)

    def record(call, args, kwargs, context):
        result = call(*args, **kwargs)
        match context.module, context.method_name:
            case Dropout(), "__call__":
                dropped.append(result)
            case (Gru() | DecoderLayer(), "__call__") | (RnnDecoder(), "hidden"):
                read.append(args[0])
            case RnnEncoder(), "__call__":
                read.append(result)
        return result

    with nn.intercept_methods(record):
        apply = partial(make_model(config).apply, rngs={"dropout": jax.random.key(0)})
        jax.eval_shape(partial(apply, method="hidden"), variables, *BATCH[:4])
    directions = 2 if kind == "rnn_attention" else 1
    assert len(read) == directions * 2 + 1 + 2 + 1  # two layers each
    assert len(dropped) == 3 + 3
    for x in read:
        assert any(x is output for output in dropped)


# Given targets.


def test_given_targets_have_the_scores_and_the_attention_of_teacher_forcing():
    """tests/decoding compares the scores with those of a search, also without attention."""
    lengths, target_lengths = np.array([4, 2, 5]), np.array([6, 1, 4])
    pairs = np.asarray(ids(3, 5)), lengths, np.asarray(ids(3, 6)), target_lengths

    def run(kind, variables, *pairs):
        model = make_model(small(kind))
        inputs = jnp.asarray(np.insert(pairs[2][:, :-1], 0, model.config.start_id, axis=1))
        segments = [
            jnp.asarray((np.arange(x.shape[1]) < n[:, None]).astype(np.int32))
            for x, n in (pairs[:2], pairs[2:])
        ]
        logits = model.apply(variables, jnp.asarray(pairs[0]), inputs, *segments)
        scores = score_targets([(model, variables)], GivenPairs(*map(jnp.asarray, pairs)))
        return scores, jax.nn.log_softmax(logits)

    of_attention = jax.jit(lambda variables: run("rnn_attention", variables, *pairs))
    scores, forced = jax.device_get(of_attention(variables_of(small("rnn_attention"))))
    for i, length in enumerate(target_lengths):
        expected = forced[i, range(length), pairs[2][i, :length]]
        np.testing.assert_allclose(scores.log_probs[i, :length], expected, rtol=1e-5, atol=1e-5)
        assert not scores.log_probs[i, length:].any()
        weights = scores.attention[i]
        np.testing.assert_allclose(weights[:length].sum(axis=1), 1.0, rtol=1e-5)
        assert (weights[:, lengths[i] :] == 0).all() and (weights[length:] == 0).all()
    without = jax.eval_shape(lambda: run("rnn", variables_of(small("rnn")), *pairs))
    assert without[0].attention is None


# Config.


def test_num_parameters_is_the_size_of_the_initialised_model():
    for kind in KINDS:
        for layers, decoder_layers, tied, bias in [(1, 0, "none", True), (2, 3, "two-way", False)]:
            config = small(kind, num_decoder_layers=decoder_layers, output_bias=bias)
            config = replace(config, num_layers=layers, tied_embeddings=tied)
            config.validate()
            count = sum(leaf.size for leaf in jax.tree.leaves(variables_of(config)))
            assert count == num_parameters(config), config


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_without_effect_on_an_rnn_is_refused_by_name(kind):
    small(kind).validate()
    changes = dict(
        d_ff=512, num_heads=4, attention_dropout=0.1, activation_dropout=0.1, norm="pre",
        positions="rotary", sinusoid_layout="halves", activation="gelu", attention_bias=True,
        layer_norm_epsilon=1e-5, d_k=4, norm_function="rms", relative_buckets=16,
        relative_distance=64, relative_tables="layer", gated_feed_forward=True,
        feed_forward_bias=False, scale_scores=False, embedding_norm=True,
        attention_kernels=False,
    )  # fmt: skip
    assert set(changes) == set(TRANSFORMER_ONLY)
    for name, value in changes.items():
        with pytest.raises(ValueError, match=f"model.{name} has no effect with model.kind={kind}"):
            small(kind, **{name: value}).validate()


def test_attention_needs_an_even_width():
    small("rnn", d_model=7).validate()
    with pytest.raises(ValueError, match="even d_model"):
        small("rnn_attention", d_model=7).validate()


@pytest.mark.slow
def test_recomputation_does_not_change_gradients():
    for kind in KINDS:
        gradients = []
        for remat in (False, True):
            model = make_model(small(kind, remat=remat))
            loss = lambda v, model=model: (model.apply(v, *BATCH[:4], method="hidden") ** 3).sum()  # noqa: E731
            gradients.append(jax.jit(jax.grad(loss))(variables_of(small(kind))))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), *gradients)


@pytest.mark.slow
def test_recomputation_needs_less_memory_with_attention():
    needed = []
    for remat in (False, True):
        config = small("rnn_attention", remat=remat, max_length=64)
        model, ids = make_model(config), jnp.ones((8, 64), jnp.int32)
        loss = lambda v, model=model, ids=ids: model.apply(v, ids, ids, ids, ids).sum()  # noqa: E731
        compiled = jax.jit(jax.grad(loss)).lower(variables_of(config)).compile()
        needed.append(compiled.memory_analysis().temp_size_in_bytes)
    assert needed[1] < needed[0] / 2
