"""Attention weights of a pair: NumPy from the parameters, steps with the cache, and the alignment.

Axes: L layers · H heads · S source · T target · D model width · K head width.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.encoder_decoder import DecoderState
from tests.support.models.quick_search import quick_searches
from tests.support.models.random_translator import scored, texts_of, translator_of

SOURCE, TARGET = "eins zwei drei", "vier fünf sechs elf zehn"
S, T = 4, 6  # tokens of them, with end tokens


@pytest.fixture(scope="module")
def translator():
    return translator_of((0, 1), layers=2)


@pytest.fixture(scope="module")
def attended(translator):
    return translator.attention(SOURCE, TARGET)


def ids_of(translator):
    encode = translator.source_tokenizer.encode
    return [[*encode(text), 2] for text in (SOURCE, TARGET)]


def test_the_weights_of_each_row_sum_to_1_and_none_is_in_the_future(attended):
    assert attended.source == [*SOURCE.split(), "</s>"] and attended.target == [
        *TARGET.split(),
        "</s>",
    ]
    shapes = {"encoder": (2, 2, S, S), "decoder": (2, 2, T, T), "cross": (2, 2, T, S)}
    for name, shape in shapes.items():
        weights = getattr(attended, name)
        assert weights.shape == shape and weights.dtype == np.float32
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    future = np.triu(np.ones((T, T), bool), 1)
    assert not attended.decoder[:, :, future].any() and attended.decoder[:, :, ~future].any()


def test_a_target_may_be_longer_than_the_bucket_of_its_source():
    translator = translator_of(longest=20, layers=2)
    assert translator.engine.buckets == [16, 20]
    attention = translator.attention("eins", " ".join(["zwei"] * 17))
    assert attention.cross.shape == (2, 2, 18, 2)
    np.testing.assert_allclose(attention.cross.sum(axis=-1), 1.0, atol=1e-5)


def by_hand(table, ids, positions, params, causal):
    """softmax(Q Kᵀ / √K) [H, T, T] of the first layer: equation 1 in NumPy."""
    x = table[ids] * table.shape[1] ** 0.5 + positions[: len(ids)]
    queries, keys = (np.einsum("td,dhk->htk", x, params[name]) for name in ("query", "key"))
    scores = np.einsum("htk,hsk->hts", queries, keys) / np.sqrt(queries.shape[-1])
    if causal:
        scores[:, np.triu(np.ones((len(ids),) * 2, bool), 1)] = -np.inf
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sinusoids(length, width):
    """sin and cos of position / 10000^(2i / D) (section 3.5), interleaved."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def test_the_self_attention_of_the_first_layers_follows_from_the_parameters(translator, attended):
    params = jax.device_get(translator.engine.params()[0])
    source, target = ids_of(translator)
    inputs = [translator.engine.models[0].config.start_id, *target[:-1]]
    table, positions = params["target_embedding"]["table"], sinusoids(T, 32)
    for name, ids, causal in (("encoder", source, False), ("decoder", inputs, True)):
        attention = params[name]["layers_0"]["self_attention"]
        expected = by_hand(table, ids, positions, attention, causal)
        np.testing.assert_allclose(getattr(attended, name)[0], expected, atol=1e-4)


def test_the_weights_of_the_decoder_are_those_of_a_search_with_its_cache(translator, attended):
    """Also of the second model of an ensemble, which differs from the first."""
    source, target = (jnp.array([ids]) for ids in ids_of(translator))
    inputs = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    module = translator.engine.models[0]

    @jax.jit
    def stepped(variables):
        segments = jnp.ones_like(source)
        encoded = module.apply(variables, source, segments, method="encode")
        memory = module.apply(variables, encoded, method="memory")
        start = DecoderState(memory, jnp.array([S]), module.empty_caches(1, T, beams=1))

        def step(state, t):
            ancestry = jnp.where(jnp.arange(T) <= t, 0, -1)[None, None]
            (_, state), sown = module.apply(
                variables, inputs[:, t][:, None], state, t[None], jnp.zeros((1, 1), int), ancestry,
                method="step", mutable="intermediates",
            )  # fmt: skip
            layers = [sown["intermediates"]["decoder"][f"layers_{i}"] for i in range(2)]
            return state, [
                jnp.stack([layer[name]["weights"][0][0, :, 0] for layer in layers])
                for name in ("self_attention", "cross_attention")
            ]

        return jax.lax.scan(step, start, jnp.arange(T))[1]

    other_attention = translator.attention(SOURCE, TARGET, model=1)
    assert not np.allclose(attended.cross, other_attention.cross, atol=1e-2)
    for attention, variables in zip(
        (attended, other_attention), translator.engine.variables, strict=True
    ):
        for weights, expected in zip(attention[3:], stepped(variables), strict=True):
            np.testing.assert_allclose(weights, np.moveaxis(expected, 0, 2), atol=1e-5)


def test_the_alignment_follows_from_the_cross_attention(translator, attended):
    """Mean over the heads of the second to last layer, and over the models; without end tokens."""
    models = [attended, translator.attention(SOURCE, TARGET, model=1)]
    weights = np.mean([attention.cross[0].mean(axis=0) for attention in models], axis=0)[:-1, :-1]
    (alignment,) = scored(translator, [(SOURCE, TARGET)])
    assert alignment.links == [(int(weights[t].argmax()), t) for t in range(T - 1)]
    assert len({source for source, _ in alignment.links}) > 1


def test_without_a_target_the_weights_are_those_of_the_translation(translator):
    with quick_searches():
        (text,) = texts_of(translator.stream([SOURCE]))
        searched = translator.attention(f" {SOURCE}")
    forced = translator.attention(SOURCE, text)
    assert searched.target == forced.target == [*text.split(), "</s>"]
    for weights, expected in zip(searched[2:], forced[2:], strict=True):
        assert np.array_equal(weights, expected)


def test_sources_and_targets_may_be_blank_and_long_ones_are_truncated(translator):
    with quick_searches():
        blank = translator.attention("")
    assert (blank.source, blank.target) == (["</s>"], ["</s>"])
    assert blank.cross.shape == (2, 2, 1, 1) and (blank.cross == 1.0).all()
    long = translator.attention("eins " * 100, "zwei " * 100)
    assert len(long.source) == len(long.target) == 16  # the models' max_length
    assert long.source[-1] == "</s>"


def test_wrong_arguments_are_refused_by_name(translator):
    for model in (-1, 2):
        with pytest.raises(ValueError, match=f"^model must be from 0 to 1, got {model}$"):
            translator.attention(SOURCE, TARGET, model=model)
    for arguments, name in (((None,), "source"), (([SOURCE],), "source"), ((SOURCE, 7), "target")):
        with pytest.raises(TypeError, match=f"^{name} must be a string, got "):
            translator.attention(*arguments)
