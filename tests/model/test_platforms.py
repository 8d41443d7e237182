"""Choices by platform: the lowered program holds those of its platform, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model import platforms
from seq2seq.model.cache import StoredKeysValues
from seq2seq.model.platforms import CPU, GPU, TPU, by_platform, choices_of
from seq2seq.model.search import candidates, translate
from seq2seq.model.transformer import Transformer
from tests.support.models.small_transformer import SMALL

NAMES = ("cpu", "cuda", "rocm", "tpu")


def test_each_platform_has_its_choices():
    """JAX's names of backends (gpu) and of lowering platforms (cuda, rocm)."""
    assert [choices_of(name) for name in ("cpu", "tpu")] == [CPU, TPU]
    assert {choices_of(name) for name in ("gpu", "cuda", "rocm")} == {GPU}


@pytest.mark.parametrize("values", [(5, 6, 7), (5, 6, 6), (5, 5, 6), (5, 6, 5)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_that_of_the_platform_for_which_it_is_lowered(monkeypatch, values, name):
    chosen = dict(zip(("CPU", "TPU", "GPU"), values, strict=True))
    for platform, value in chosen.items():
        choices = getattr(platforms, platform)._replace(queue=value)
        monkeypatch.setattr(platforms, platform, choices)

    def program(x):
        return by_platform(lambda choices: choices.queue, lambda n: x + jnp.full(n, 9.0).sum())

    text = jax.jit(program).trace(np.float32(0)).lower(lowering_platforms=(name,)).as_text()
    expected = chosen["GPU" if name in ("cuda", "rocm") else name.upper()]
    assert [n for n in (5, 6, 7) if f"tensor<{n}xf32>" in text] == [expected], text


def test_equal_values_give_a_program_without_branches():
    jaxpr = jax.make_jaxpr(lambda x: by_platform(lambda choices: 3, lambda n: x * n))(2.0)
    assert [str(equation.primitive) for equation in jaxpr.eqns] == ["mul"]


@pytest.mark.parametrize(
    "lanes, length", [(64, 16), (64, 32), (16, 32), (5, 200), (1, 16), (3, 600)]
)
def test_the_encoder_takes_as_many_sentences_as_fit_into_its_tokens(monkeypatch, lanes, length):
    taken, memory = [], (StoredKeysValues(jnp.zeros(1), jnp.zeros(1)),)
    monkeypatch.setattr(translate, "encode_batches", lambda *a: taken.append(a[-1]) or memory)
    source, lengths = (jnp.zeros(shape, jnp.int32) for shape in ((lanes, length), lanes))
    model, variables = Transformer(SMALL), {"params": {}}
    # A trace holds the branches of all platforms; outside of jit only one of them is run.
    jax.eval_shape(lambda: translate.encode_sources(model, variables, source, lengths))
    expected = set()
    for choices in (CPU, GPU, TPU):
        fitting = [n for n in range(1, lanes + 1) if n * length <= choices.encoder_tokens]
        expected.add(max(fitting, default=1))
    assert set(taken) == expected


@pytest.mark.parametrize("k", [1, 2, 8])
def test_one_stage_and_two_stages_find_the_same_tokens(monkeypatch, k):
    """Half of the values are ties."""
    x = np.random.default_rng(k).integers(0, 500, (3, 1000)).astype(np.float32)
    order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    sorts = []
    for two in (True, False):
        for name in ("CPU", "GPU", "TPU"):
            choices = getattr(platforms, name)._replace(two_stages=two)
            monkeypatch.setattr(platforms, name, choices)
        values, indices = jax.jit(lambda x: candidates.top_k(x, k))(x)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=-1))
        sorts.append(str(jax.make_jaxpr(lambda x: candidates.top_k(x, k))(x)).count("top_k"))
    assert sorts == [2, 1]
