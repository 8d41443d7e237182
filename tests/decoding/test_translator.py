"""Translator with a search that returns the source: order, windows, buckets, truncation, memory."""

import os
import random
import signal
from contextlib import suppress
from dataclasses import replace

import jax
import numpy as np
import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.decoding.engine import engine
from seq2seq.decoding.engine.sizes import Machine, sizes_of
from seq2seq.decoding.results import Item, as_item
from seq2seq.decoding.translator import Translator
from seq2seq.model.config import CHOICES, ModelConfig
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.runtime.errors import CONFIGURATION, UserError
from tests.support.forked import fork
from tests.support.models.echo import echoing_translator
from tests.support.models.random_parameters import random_params
from tests.support.models.random_translator import scored, translator_of
from tests.support.tiny import WORDS


@pytest.fixture
def echo():
    return echoing_translator()


@pytest.mark.parametrize("trained", ["float32", "bfloat16"])
@pytest.mark.parametrize("override", ["", "float32", "mixed"])
def test_a_model_computes_in_the_dtype_of_its_training_unless_another_is_given(trained, override):
    words = ListTokenizer("words", "\n".join(WORDS).encode())
    models = [ModelConfig(d_model=8, num_heads=2, dtype=trained)]
    engine = Translator(models, (words, words), DecodingConfig(dtype=override)).engine
    assert engine.models[0].config == replace(models[0], dtype=override or trained)


def test_weights_that_are_cast_serve_no_translator_of_a_wider_dtype():
    wide, narrow = (translator_of(dtype=dtype) for dtype in ("float32", "mixed"))
    with pytest.raises(UserError, match="dtype=float32 is not supported by weights") as caught:
        narrow.with_options(dtype="float32")
    assert caught.value.code == CONFIGURATION
    shared, cast = (
        dtypes_of(wide.with_options(**options))
        for options in (dict(alpha=1.0), dict(dtype="mixed"))
    )
    assert shared == dtypes_of(wide) != cast == dtypes_of(narrow)


def test_translators_of_shared_models_use_new_parameters():
    """Also one whose parameters are cast, which needs a copy of its own."""
    translator, options = translator_of(), dict(dtype="bfloat16")
    pairs = [("eins zwei", "vier elf acht")]
    before = scored(translator.with_options(**options), pairs)
    translator.use(random_params(translator.engine.models[0].config, 7))
    after = scored(translator.with_options(**options), pairs)
    assert after == scored(translator_of(seeds=(7,)).with_options(**options), pairs) != before


def test_a_fork_of_a_process_that_uses_jax_is_refused(tmp_path):
    """Its calls would never return: the threads of JAX do not exist in the child."""
    translator = translator_of()
    calls = [
        lambda: translator.translate(["eins"]),
        lambda: list(translator.score([("eins", "zwei")])),
        lambda: translator.attention("eins", "zwei"),
        lambda: translator.use({}),
        lambda: Translator.load(tmp_path),
    ]
    if (child := fork()) == 0:
        signal.alarm(20)  # ends the child if a call does not return
        refused = 0
        try:
            for call in calls:
                with suppress(UserError):
                    call()
                    break
                refused += 1
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)


def dtypes_of(translator):
    """Those of all parameters."""
    return [x.dtype.name for x in jax.tree.leaves(translator.engine.variables)]


def test_every_line_keeps_its_place_for_any_length_and_window(echo):
    translator, seen = echo
    choose = random.Random(0)
    lines = [
        " ".join(choose.choices(WORDS, k=choose.choice([0, 0, 1, 2, 15, 16, 31, 60])))
        for _ in range(101)
    ]
    assert translator.translate(lines) == lines
    assert {bucket for bucket, _ in seen} == {16, 32, 64}
    for bucket, lengths in seen:  # the smallest bucket that holds the sentence and its end token
        assert lengths.max() <= bucket
        smaller = max(b for b in (0, 16, 32, 64) if b < bucket)
        assert (lengths[lengths > 0] > smaller).all()


def test_only_the_lines_of_a_few_windows_are_read_ahead(echo):
    translator, _ = echo
    read = []

    def lines():
        for i in range(1000):
            read.append(i)
            yield WORDS[i % len(WORDS)]

    stream = translator.stream(lines())
    first = [next(stream).text for _ in range(3)]
    assert first == WORDS[:3]
    # Windows of one call each: those in flight, the next, one tokenized ahead, one read ahead.
    sizes = translator.engine.sizes
    assert len(read) <= (sizes.calls + 4) * sizes.window


def test_a_translation_records_the_length_of_its_source_before_and_after_truncation(echo):
    translator, _ = echo
    result = list(translator.stream([" ".join(WORDS * 10), "eins"]))
    assert (result[0].tokens, result[0].kept) == (111, 70)
    assert result[0].text == " ".join((WORDS * 10)[:69])
    assert (result[1].tokens, result[1].kept) == (2, 2)


@pytest.fixture
def small_memory(echo):
    """An echo on devices that hold `room` sentences; also the sizes that were tried."""
    translator, _ = echo
    translator.decoding = replace(translator.decoding, batch_size=8)
    models = [model.config for model in translator.engine.models]
    new = engine.Engine(models, translator.decoding)
    new.variables = []  # `search` below reads none
    new.sizes = replace(new.sizes, queue=2, window=2 * 8 * jax.local_device_count())
    tried, memory = [], {"room": 2}

    def search(program):
        def run(variables, request):
            rows = request.source.shape[1] // new.sizes.queue
            tried.append(rows)
            if rows > memory["room"]:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            shape = (*request.lengths.shape, 1)
            zeros = np.zeros(shape, np.float32)
            return Hypotheses(
                request.source[:, :, None], request.lengths.reshape(shape), zeros, zeros
            )

        return run

    new._search, translator.engine = search, new
    return translator, tried, memory


def test_batches_that_do_not_fit_into_memory_are_halved(small_memory, capsys):
    translator, tried, _ = small_memory
    lines = [" ".join(WORDS[: 1 + i % 9]) for i in range(150)]
    assert translator.translate(lines) == lines
    assert set(tried) == {8, 4, 2} and tried[-1] == 2
    assert capsys.readouterr().err.count("trying half as many") == 2
    assert translator.translate(lines) == lines
    assert capsys.readouterr().err == ""  # the smaller size is kept


def test_lanes_may_be_halved_between_the_choice_of_lines_and_their_call(small_memory):
    """By another call, in its thread. The call has the lanes with which its lines were chosen."""
    translator, tried, memory = small_memory
    memory["room"], submit, sizes = 100, translator.engine._submit, translator.engine.sizes

    def submit_later(program, sources):
        if not tried:
            sizes._halve(sizes.lanes(16), 16)
        return submit(program, sources)

    translator.engine._submit = submit_later
    lines = [" ".join(WORDS[: 1 + i % 9]) for i in range(150)]
    assert translator.translate(lines) == lines
    assert tried[0] == 8 and tried[-1] == 4


def test_memory_may_run_out_while_results_are_fetched(small_memory, capsys, monkeypatch):
    """Calls run asynchronously: their errors may appear in device_get."""
    translator, _, memory = small_memory
    memory["room"] = 100
    device_get, fetched = jax.device_get, []

    def fetch(hypotheses):
        fetched.append(hypotheses.tokens.shape[1] // translator.engine.sizes.queue)
        if fetched[-1] > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return device_get(hypotheses)

    monkeypatch.setattr(engine.jax, "device_get", fetch)
    lines = [" ".join(WORDS[: 1 + i % 9]) for i in range(150)]
    assert translator.translate(lines) == lines
    assert set(fetched) == {8, 4, 2} and fetched[-1] == 2
    assert capsys.readouterr().err.count("trying half as many") == 2


def test_a_sentence_that_does_not_fit_into_memory_is_refused_and_other_errors_are_raised(
    small_memory,
):
    translator, tried, memory = small_memory
    memory["room"] = 0
    with pytest.raises(
        UserError, match="lower decoding.batch_size.*decoding.model_parallel="
    ) as caught:
        translator.translate(["eins"])
    assert caught.value.code == CONFIGURATION
    assert tried == [8, 4, 2, 1]

    def broken(program):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    translator.engine._search = broken
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        translator.translate(["eins"])


def test_a_sentence_that_does_not_fit_is_refused_after_fewer_halvings_than_the_most():
    def full():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    sizes = sizes_of([ModelConfig()], DecodingConfig(batch_size=2), Machine("cpu"))
    assert sizes.run_or_halve(2, 16, full) is None and sizes.lanes(16) == 1
    with pytest.raises(UserError, match="1 sentences of up to 16 tokens do not fit"):
        sizes.run_or_halve(1, 16, full)


def test_a_source_prefix_that_is_no_string_is_refused():
    with pytest.raises(TypeError, match=r"lines\[3\] must be a string"):
        as_item((3, Item("a", "a", source_prefix=7)))


def test_length_ratios_of_any_size_limit_the_length():
    words = ListTokenizer("words", "\n".join(WORDS).encode())
    model = ModelConfig(d_model=8, num_heads=2, max_length=70)
    lengths, cap = np.array([0, 1, 7]), 2**31 - 1
    for ratio, most, fewest in ((1e9, [0, 6, 12], [0, 10**9, cap]), (0.5, [0, 1, 4], [0, 1, 4])):
        options = DecodingConfig(max_extra_length=5, max_length_ratio=ratio, min_length_ratio=ratio)
        search = Translator([model], (words, words), options).engine
        assert search.max_lengths(lengths).tolist() == most
        assert search.min_lengths(lengths).tolist() == fewest


@pytest.mark.parametrize("positions", CHOICES["positions"])
def test_sources_may_have_the_longest_length_for_any_max_extra_length(positions):
    words = ListTokenizer("words", "\n".join(WORDS).encode())
    models = [
        ModelConfig(d_model=8, num_heads=2, max_length=longest, positions=positions)
        for longest in (90, 70)
    ]
    lengths = np.array([0, 1, 7, 69, 70], np.int32)  # as those of a request
    for extra in (0, 5, 69, 10_000, 2**31 - 1):
        options = DecodingConfig(max_extra_length=extra)
        options.validate()
        engine = Translator(models, (words, words), options).engine
        limited = positions in ("sinusoidal", "learned")
        assert engine.buckets == [16, 32, 64, *([70] if limited else 2 ** np.arange(7, 13))]
        expected = [0, *(min(n + extra, 70 if limited else 4096) for n in (1, 7, 69, 70))]
        assert engine.max_lengths(lengths).tolist() == expected


def test_ratios_are_exact_in_decimals():
    """In binary, 25 × 2.2 is above 55."""
    words = ListTokenizer("words", "\n".join(WORDS).encode())
    model, lengths = ModelConfig(d_model=8, num_heads=2, max_length=4096), np.arange(1, 257)
    for tenths in range(1, 40):
        ratio = tenths / 10
        options = DecodingConfig(
            max_extra_length=4096, max_length_ratio=ratio, min_length_ratio=ratio
        )
        engine = Translator([model], (words, words), options).engine
        expected = [-(-n * tenths // 10) for n in lengths.tolist()]
        assert engine.max_lengths(lengths).tolist() == expected
        assert engine.min_lengths(lengths).tolist() == expected
