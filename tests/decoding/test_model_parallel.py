"""Models that several devices share: search, sampling and scores against one device."""

import re
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from seq2seq.decoding.engine import placed_parameters
from seq2seq.decoding.engine.programs import compiled
from seq2seq.decoding.results import Source
from seq2seq.model.config import num_parameters
from seq2seq.runtime.errors import CONFIGURATION, UserError
from tests.support.models.random_translator import LINES, scored, translator_of

MORE = [*LINES, *(" ".join(line.split()[::-1]) for line in LINES)] * 3


@cache
def translator(devices, **options):
    # A vocabulary of 300: its rows are divided, and the best tokens are found in two stages.
    return translator_of(batch_size=2, unused=285, model_parallel=devices, **options)


def results(devices, lines, **options):
    """(texts, scores) of all hypotheses."""
    found = list(translator(devices, **options).stream(lines))
    texts = [[hypothesis.text for hypothesis in result.hypotheses] for result in found]
    scores = [hypothesis.score for result in found for hypothesis in result.hypotheses]
    return texts, scores


@pytest.mark.parametrize("options", [{}, pytest.param(dict(samples=3), marks=pytest.mark.slow)])
def test_devices_that_share_a_model_translate_as_one_device_does(options):
    """With a queue that is refilled, in two copies of the model."""
    texts, scores = results(2, MORE, **options)
    expected_texts, expected_scores = results(1, MORE, **options)
    assert texts == expected_texts and len(texts) == len(MORE)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
    sizes = translator(2, **options).engine.sizes
    assert (sizes.copies, sizes.calls) == (jax.local_device_count() // 2, 1)
    variables = translator(2, **options).engine.variables[0]["params"]
    query = variables["decoder"]["layers_0"]["cross_attention"]["query"]
    assert query.addressable_shards[0].data.shape == (32, 1, 16)  # one of two heads


def test_lines_have_the_same_bits_with_any_neighbours_on_devices_that_share_a_model():
    whole = [result.hypotheses for result in translator(2).stream(MORE)]
    assert whole == [result.hypotheses for result in translator(2).stream(MORE[::-1])][::-1]


@pytest.mark.parametrize("options", [{}, pytest.param(dict(samples=3), marks=pytest.mark.slow)])
def test_copies_of_a_model_that_search_do_not_wait_for_each_other(options):
    """Their numbers of steps differ: a message between all devices would never be received."""
    engine = translator(2, **options).engine
    program = engine.program(16)
    request = engine._request(program, [Source(0, [5, 6])])
    lowered = compiled(program).lower(engine.variables, request, engine.values)
    text = lowered.compile().as_text()
    groups = re.findall(r"replica_groups=(\S+?), ", text)
    assert groups and set(groups) <= {"[2,2]<=[4]", "{{0,1},{2,3}}"}
    assert "collective-permute" not in text and "all-to-all" not in text


@pytest.mark.slow
def test_devices_that_share_a_model_score_and_align_as_one_device_does():
    pairs = [("eins zwei drei", "vier fünf"), ("elf", "zehn neun acht"), ("sechs", "eins")]
    for one, two in zip(*(scored(translator(n), pairs) for n in (1, 2)), strict=True):
        np.testing.assert_allclose(two.log_probs, one.log_probs, rtol=1e-5)
        assert two.links == one.links
    attentions = [translator(n).attention("eins zwei", "drei") for n in (1, 2)]
    for one, two in zip(*(attention[2:] for attention in attentions), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-6)


def test_a_number_of_devices_that_cannot_share_a_model_is_refused_with_those_that_can():
    for devices in (3, 4):  # the model has two heads, and there are four devices
        with pytest.raises(UserError, match="expected 1 or 2 with model.num_heads=2") as error:
            translator(devices)
        assert error.value.code == CONFIGURATION
    with pytest.raises(UserError, match="lies on 2 devices; load the model with it"):
        translator(2).with_options(model_parallel=1)


def test_parameters_that_do_not_fit_are_refused_with_the_number_of_devices_that_do(monkeypatch):
    models = [replace(translator(1).engine.models[0].config, num_heads=4)]
    needed = 4 * num_parameters(models[0])
    for memory, expected in ((needed - 1, 2), (needed // 2 - 1, 4), (needed // 4 - 1, None)):
        monkeypatch.setattr(placed_parameters, "device_memory", lambda memory=memory: memory)
        with pytest.raises(UserError, match="set decoding.dtype=bfloat16") as error:
            placed_parameters.check_memory(models, 1)
        _, _, named = str(error.value).partition("decoding.model_parallel=")
        assert named == ("" if expected is None else str(expected))
        if expected is not None:
            placed_parameters.check_memory(models, expected)
