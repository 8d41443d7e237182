"""Compiled programs: numbers are arguments, programs are shared and released; NaN and infinity.

The model is random, so that hypotheses differ and every option has an effect.
"""

import gc
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding import translator as module
from seq2seq.decoding.command.formats import Item, formats_of
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.engine import programs
from seq2seq.decoding.search_options import search_options
from seq2seq.decoding.translator import Translator
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.translate import Request
from seq2seq.pretrained import models
from seq2seq.runtime.errors import CHECKPOINT, DIVERGED, UserError
from seq2seq.storage import run_files
from tests.support.models.quick_search import quick_searches, repeat
from tests.support.models.random_parameters import random_params
from tests.support.models.random_translator import LINES, OPTIONS, translator_of
from tests.support.tiny import write_run


def test_a_search_and_config_decoding_have_the_same_defaults():
    defaults = SearchOptions(max_length=0, end_id=2)._asdict()
    assert SearchOptions(**defaults) == search_options(DecodingConfig(), 2, {})
    for name in ("end_id", "rules", "weights", "cache_blocks"):  # not options of a config
        del defaults[name]
    assert (defaults.pop("suppress"), defaults.pop("masks")) == ((), ())
    assert {name: getattr(DecodingConfig(), name) for name in defaults} == defaults


VALUES = (
    dict(alpha=0.3, repetition_penalty=1.2, temperature=0.7, top_p=0.9, seed=5),
    dict(alpha=2.5, repetition_penalty=1.8, temperature=1.8, top_p=0.4, seed=2**31 - 1),
)


def test_new_values_compile_nothing_and_are_those_of_the_search():
    """tests/decoding/test_decoding_combinations.py tests their effects."""
    traced = []

    def values(models, request, options, lanes):
        traced.append(lanes)
        numbers = (
            options.alpha, options.repetition_penalty, options.temperature, options.top_p,
            options.seed,
        )  # fmt: skip
        return jnp.array(numbers)

    lengths = np.array([16, 3, 0])
    request = Request(np.zeros((3, 16), int), lengths, lengths, numbers=np.arange(3))
    request = jax.tree.map(lambda x: np.stack([x] * jax.local_device_count()), request)
    with quick_searches(values):
        for options in VALUES:
            engine = translator_of(samples=3, **options).engine
            search = engine._search(engine.program(16))
            values_used = jax.device_get(search(engine.variables, request))
            np.testing.assert_array_equal(values_used[-1], np.float32(list(options.values())))
    assert len(traced) == 1


def test_other_weights_of_an_ensemble_compile_nothing():
    first, second, usual = (
        translator_of((0, 1), weights=weights).engine for weights in ((0.9, 0.1), (0.2, 0.8), None)
    )
    assert first.program(16) == second.program(16)
    shapes = [jax.tree.map(np.shape, engine.values) for engine in (first, second, usual)]
    assert shapes[0] == shapes[1] != shapes[2]


def test_the_least_recently_used_program_is_released():
    with quick_searches():
        translator = translator_of()
        translator.translate(LINES)
        client = jax.devices()[0].client
        gc.collect()
        live = len(client.live_executables())
        program = translator.engine.program(16)
        reference = weakref.ref(programs.compiled(program))
        for lanes in range(100, 100 + programs.PROGRAMS):  # not traced
            programs.compiled(program._replace(lanes=lanes))
        gc.collect()
        assert reference() is None
        assert len(client.live_executables()) < live


def test_a_limited_number_of_option_sets_is_kept_and_they_share_parameters():
    translator = translator_of()
    sets = [weakref.ref(translator.with_options(alpha=i / 16)) for i in range(3 * 16)]
    gc.collect()
    assert sum(reference() is not None for reference in sets) <= module.OPTION_SETS
    again = translator.with_options(alpha=47 / 16)
    assert again is translator.with_options(alpha=47 / 16)
    assert again.engine.variables is translator.engine.variables
    assert translator.with_options(**OPTIONS) is translator


def test_the_largest_alpha_overflows_at_no_length_and_the_next_is_refused():
    DecodingConfig(alpha=4).validate()
    longest = np.float32(2**31 - 1)
    assert np.isfinite(longest ** np.float32(4)) and not np.isfinite(longest ** np.float32(4.5))
    for alpha in (4.5, 1e30, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="decoding.alpha must be"):
            DecodingConfig(alpha=alpha).validate()


# NaN and infinity.


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_parameters_that_are_not_finite_are_refused_before_a_search(tmp_path: Path, value):
    write_run(tmp_path / "good")
    config, tokenizers = models.open_model(tmp_path / "good", "best")
    params = models.load_params(tmp_path / "good", "best")
    params["target_embedding"]["table"][3, 2] = value
    (tmp_path / "bad").mkdir()
    run_files.write_run(tmp_path / "bad", config, tokenizers, params)
    with pytest.raises(UserError, match="bad: .*target_embedding/table is not finite") as caught:
        Translator.load([tmp_path / "good", tmp_path / "bad"])
    assert caught.value.code == CHECKPOINT


def test_scores_that_are_not_finite_name_the_line():
    """tests/model/test_nonfinite.py searches over such logits."""
    translator = translator_of()

    def search(*arguments):
        hypotheses = repeat(*arguments)
        return hypotheses._replace(scores=hypotheses.scores * jnp.nan)

    with pytest.raises(UserError, match="^line 12: the model's logits are not finite") as caught:
        with quick_searches(search):
            list(translator.stream(["", "eins"], first=10))
    assert caught.value.code == DIVERGED
    config = translator.engine.models[0].config
    table = np.full((config.target_vocab_size, config.d_model), 1e30, np.float32)
    params = [random_params(config, 0) for _ in translator.engine.models]
    params[0]["target_embedding"]["table"] = table  # finite; the logits are not
    translator.use(*params)
    items = [(20, Item("", "")), (22, Item("eins", "eins", target="zwei"))]
    formats = formats_of("text")
    output_lines = OutputLines(
        translator, "score", formats, "in.txt", DecodingProgress(0, False, False)
    )
    with pytest.raises(UserError, match="^line 23: ") as caught:
        list(output_lines(items))
    assert caught.value.code == DIVERGED
