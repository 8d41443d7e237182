"""Trained claims whose rules are tested with made-up results: their programs are traced, not run.

The effect of a variant is tested on the variant itself. That a training shows this effect is
measured by claims.py, whose results hold only for the code that they name by a digest.
"""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments import (
    attention_heads,
    beam_sizes,
    causal_masking,
    context_vector,
    feed_forward_layers,
    korean_model,
    longer_sequences,
    residual_connections,
    small_model,
    softmax_scaling,
    teacher_forcing,
    word_order,
)
from seq2seq.scripts.experiments.outcome import rounded
from seq2seq.scripts.experiments.small_model import Variant, small_config
from seq2seq.scripts.experiments.tasks import copying
from seq2seq.training.parameters import init_params
from tests.scripts.tiny_claims import held, short_corpus  # noqa: F401

# An arm of each module whose programs are not those of the trained claims.
ARMS = {
    attention_heads: "8 heads",
    beam_sizes: "beam 2",
    causal_masking: "unmasked",
    context_vector: "rnn_attention",
    feed_forward_layers: "without",
    longer_sequences: "alibi",
    residual_connections: "post",
    softmax_scaling: "unscaled",
    teacher_forcing: "own tokens",
    word_order: "none, hidden",
}


def zeros(function, *arguments):
    """Zeros in the shapes of the results of a function, which is traced."""
    shapes = jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


@pytest.fixture
def traced(monkeypatch):
    """Programs are traced and return zeros; a training has ten steps, of which one is traced."""

    def traced_jit(function, static_argnums=None, **_):
        def call(*arguments):
            static = arguments[static_argnums:] if static_argnums else ()
            arrays = arguments[: len(arguments) - len(static)]
            return zeros(lambda *arrays: function(*arrays, *static), *arrays)

        return call

    def traced_step(step):
        results = []

        def call(state, batch):
            results.append(results[0] if results else zeros(step, state, batch))
            return results[0]

        return call

    monkeypatch.setattr(jax, "jit", traced_jit)
    train_step = small_model.pmap_train_step
    monkeypatch.setattr(small_model, "pmap_train_step", lambda step: traced_step(train_step(step)))
    for module in (
        context_vector,
        word_order,
        longer_sequences,
        causal_masking,
        korean_model,
        feed_forward_layers,
    ):
        monkeypatch.setitem(module.STEPS, "tiny", 10)
    monkeypatch.setitem(teacher_forcing.STEPS, "tiny", (2, 4, 10))
    monkeypatch.setattr(softmax_scaling, "WIDTHS", (1, 4))
    for module in (attention_heads, beam_sizes):  # other tests use trained models
        monkeypatch.setattr(module, "trained_korean", korean_model.trained_korean.__wrapped__)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Data has no positive values")
@pytest.mark.parametrize("module", ARMS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_an_experiment_is_traced_and_zeros_do_not_satisfy_its_rule(module, traced):
    result = rounded(module.measure(ARMS[module], 0, "tiny"))
    results = dict.fromkeys(module.ARMS, [result])
    assert not all(held(module, results))
    if find_spec("matplotlib"):
        module.draw(results)


@pytest.mark.slow
def test_a_variant_without_the_causal_mask_sees_the_later_tokens_of_a_pair_in_training_only():
    config = small_config(copying(4, range(2, 4)), num_layers=1)
    params = init_params(Transformer(config), jax.random.key(0))
    ids = jnp.array([[4, 5, 6, 7]])
    segments = jnp.array([[1, 1, 2, 2]])

    def changed(model):
        """The places whose logits depend on the second token of the first pair."""
        logits = [
            model.apply({"params": params}, ids, target, segments, segments)
            for target in (ids, ids.at[0, 1].set(4))
        ]
        return (abs(logits[0] - logits[1])[0].max(axis=-1) > 1e-6).tolist()

    assert changed(Transformer(config)) == [False, True, False, False]
    assert changed(Variant(config, causal_masking.unmasked)) == [True, True, False, False]


@pytest.mark.slow
def test_only_visible_particles_distinguish_the_orders_of_a_pair_without_positions():
    for visible in (True, False):
        corpus = word_order.Corpus("tiny", visible)
        for texts in (corpus.train, corpus.test):
            for first, second in zip(texts[::2], texts[1::2], strict=True):
                (source, target), (swapped, expected) = first, second
                assert target != expected
                assert (sorted(source.split()) == sorted(swapped.split())) == (not visible)
