"""Translator.stream on inputs that pause, fail, or hold items that are not lines."""

import os
import sqlite3
import threading
from dataclasses import replace

import jax
import numpy as np
import pytest

from seq2seq.decoding.engine.sizes import Pace
from seq2seq.decoding.results import Item
from seq2seq.decoding.translator import Translator
from seq2seq.files.lines import text_lines
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.runtime.control import Control
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from tests.support.models.echo import echoing_translator, in_time
from tests.support.tiny import WORDS


@pytest.fixture
def echo():
    return echoing_translator()


def test_a_line_in_an_open_pipe_is_answered_before_the_next_one_is_written(echo):
    translator, _ = echo
    reader, writer = os.pipe()
    stream = translator.stream(text_lines(f"/dev/fd/{reader}"))
    for line in ("eins", "", "zwei drei", " ".join(WORDS * 2)):
        os.write(writer, f"{line}\n".encode())
        assert in_time(lambda: next(stream)).text == line
    os.write(writer, b"eins\n\nzwei\n")
    os.close(writer)
    assert in_time(lambda: [translation.text for translation in stream]) == ["eins", "", "zwei"]
    os.close(reader)


def test_a_stream_closes_at_once_while_its_input_blocks(echo):
    translator, _ = echo
    reader, writer = os.pipe()
    stream = translator.stream(text_lines(f"/dev/fd/{reader}"))
    os.write(writer, b"eins\nzw")
    assert in_time(lambda: next(stream)).text == "eins"
    in_time(stream.close)
    os.close(writer)
    os.close(reader)


def test_lines_before_an_error_of_the_input_are_translated_first(echo):
    def lines():
        yield from ["eins", "zwei"]
        raise UserError(DATA, "line 3")

    seen = []
    with pytest.raises(UserError, match="line 3"):
        for translation in echo[0].stream(lines()):
            seen.append(translation.text)
    assert seen == ["eins", "zwei"]


def test_results_have_the_numbers_of_their_lines(echo):
    lines = {7: "eins", 3: "", 900: "zwei drei", 5: "vier"}
    results = {}
    for group in echo[0].numbered_translations(lines.items()):
        results |= {number: translation.text for number, translation in group.items()}
    assert results == lines


def test_long_lines_count_as_several_so_that_few_of_them_are_in_memory(echo):
    """With 4,096 characters of text and line, nine lines; windows are of 24 lines."""
    translator, together, reading = echo[0], [], []
    encode_many = translator.source_tokenizer.encode_many

    def recorded(texts):
        together.append((len(texts), len(reading)))
        return encode_many(texts)

    def lines():
        for i in range(60):
            reading.append(i)
            yield (WORDS[i % 11] + " ") * 2 + "x" * 4096

    translator.source_tokenizer.encode_many = recorded
    first_words = [translation.text.split()[0] for translation in translator.stream(lines())]
    assert first_words == [WORDS[i % 11] for i in range(60)]
    most = -(-translator.engine.sizes.window // 9)
    assert max(count for count, _ in together) == most and len(together) == 60 // most
    assert max(read for _, read in together[:1]) <= 3 * most


def test_a_stream_reads_no_more_items_ahead_than_it_is_told(echo):
    translator, read = echo[0], []
    lines = [WORDS[i % 11] if i % 5 else "" for i in range(60)]

    def recorded():
        for line in lines:
            read.append(line)
            yield line

    for ahead in (1, 5, 30):
        read.clear()
        for yielded, translation in enumerate(translator.stream(recorded(), ahead=ahead), 1):
            assert translation.text == lines[yielded - 1] and len(read) <= yielded + ahead
        assert yielded == len(read) == 60
    with pytest.raises(ValueError, match="ahead must be at least 1, got 0"):
        translator.stream(lines, ahead=0)


def test_a_call_of_translate_reads_its_lines_in_the_thread_of_the_caller(echo):
    """Rows of SQLite can be read in one thread only."""
    rows = sqlite3.connect(":memory:").execute("values ('eins'), (''), ('zwei')")
    assert echo[0].translate(text for (text,) in rows) == ["eins", "", "zwei"]


def test_a_pace_bounds_the_lines_of_a_call_and_changes_no_result():
    """Too fast a pace: one batch per call; a slow one: as many batches as a call can hold."""
    lines = [WORDS[i % 11] for i in range(200)]
    batch = 3 * jax.local_device_count()
    for seconds, most in ((1e-9, 1), (1e9, 2)):
        translator, seen = echoing_translator(Control(call_seconds=seconds))
        sizes = replace(translator.engine.sizes, window=8 * batch)  # more than a call
        translator.engine.sizes = sizes
        assert sizes.queue == 2 and translator.translate(lines) == lines
        sizes = [int((lengths > 0).sum()) for _, lengths in seen]
        assert sizes[0] <= Pace.FIRST * batch  # nothing is measured yet
        assert max(sizes[1:]) == most * batch


def test_a_prefix_longer_than_the_limit_leaves_room_for_the_end_token_only(echo):
    translator, requests = echo[0], []

    def search(program):
        def run(_, request):
            requests.append(request)
            shape = (*request.lengths.shape, 1)
            zeros = np.zeros(shape, np.float32)
            return Hypotheses(
                request.source[:, :, None], request.lengths.reshape(shape), zeros, zeros
            )

        return run

    translator.engine._search = search
    items = [
        Item("eins", "eins", prefix="eins zwei " * 4),
        Item("zwei", "zwei", prefix="drei"),
        Item("drei", "drei"),
    ]
    list(translator.stream(items))
    (request,) = requests
    lines = np.asarray(request.lengths) > 0
    assert sorted(np.asarray(request.prefix[1])[lines].tolist()) == [0, 1, 8]
    assert sorted(np.asarray(request.limits)[lines].tolist()) == [2 + 5, 2 + 5, 8 + 1]
    assert not np.asarray(request.limits)[~lines].any()


def test_a_prefix_that_the_vocabulary_cannot_represent_is_refused(echo):
    """The translation would begin with another text, ⁇."""
    items = [Item("eins", "eins"), Item("zwei", "zwei", prefix="drei ☃ vier")]
    with pytest.raises(
        UserError, match="line 2: its prefix is not in .*, got '☃'; change"
    ) as error:
        list(echo[0].stream(items))
    assert error.value.code == DATA


def test_a_pace_gives_a_call_the_batches_that_take_its_time():
    pace = Pace(10.0)
    assert not pace.measured and pace.batches(16, 160, 50) == Pace.FIRST
    pace.measure(16, 3 * 160, 6.0)  # 2 s for each batch of 160 source positions
    assert pace.measured
    assert pace.batches(16, 160, 50) == 5 and pace.batches(16, 160, 4) == 4
    assert pace.batches(32, 320, 50) == 2  # a bucket that was not measured: 4 s
    pace.measure(16, 4 * 160, 1.0)  # 0.25 s per batch
    assert pace.batches(16, 160, 50) == 40
    pace.measure(32, 320, 100.0)
    assert pace.batches(32, 320, 50) == 1 and pace.batches(16, 160, 50) == 40
    assert pace.batches(64, 320, 50) == 1  # as in the slowest bucket


def test_lines_that_are_not_strings_are_refused_with_their_index(echo):
    translator, _ = echo
    for wrong in ("eins zwei", ""):
        with pytest.raises(TypeError, match=r"pass \[text\]"):
            translator.translate(wrong)
        with pytest.raises(TypeError, match=r"pass \[text\]"):
            translator.stream(wrong)
    for wrong in (None, 7, b"eins", ["eins"]):
        with pytest.raises(TypeError, match=r"lines\[1\] must be a string, got"):
            translator.translate(["eins", wrong])


def test_an_option_that_is_not_a_number_is_refused(echo):
    for name, expected, wrong in (
        ("beam_size", "an integer", "4"),
        ("alpha", "a number", None),
        ("top_p", "a number", [0.9]),
    ):
        with pytest.raises(UserError, match=f"decoding.{name} must be {expected}, got ") as caught:
            echo[0].translate(["eins"], **{name: wrong})
        assert caught.value.code == CONFIGURATION


def test_an_unknown_option_names_the_nearest_one(echo):
    for wrong, nearest in (("beam", "beam_size"), ("n_best", "nbest"), ("topp", "top_p")):
        with pytest.raises(TypeError, match=f"unknown option {wrong}; did you mean {nearest}"):
            echo[0].translate(["eins"], **{wrong: 4})
        with pytest.raises(TypeError, match=f"did you mean {nearest}"):
            Translator.load("nowhere", **{wrong: 4})
    with pytest.raises(TypeError, match="unknown option zzz; options: beam_size, "):
        echo[0].translate(["eins"], zzz=1)


def test_calls_run_at_the_same_time_and_take_lines_in_turn(echo):
    """A barrier that only two calls together can pass."""
    translator, seen = echo
    engine, together = translator.engine, threading.Barrier(2, timeout=60)
    batch = 3 * jax.local_device_count()
    engine.sizes = replace(engine.sizes, calls=2, window=4 * batch)
    echoed = engine._search

    def search(program):
        def run(*arguments):
            together.wait()
            return echoed(program)(*arguments)

        return run

    engine._search = search
    lines = [" ".join(WORDS[: 1 + i % 9]) for i in range(2 * batch)]
    assert translator.translate(lines) == lines
    lengths = [np.sort(call_lengths[call_lengths > 0]) for _, call_lengths in seen]
    assert len(lengths) == 2 and abs(lengths[0] - lengths[1]).max() <= 1


def test_an_error_in_a_call_is_raised_and_the_waiting_calls_are_cancelled(echo):
    translator, started = echo[0], []

    def search(program):
        def run(*arguments):
            started.append(program)
            raise ZeroDivisionError

        return run

    engine = translator.engine
    engine._search = search
    engine.sizes = replace(engine.sizes, window=50 * 3 * jax.local_device_count())
    with pytest.raises(ZeroDivisionError):
        translator.translate([WORDS[i % 11] for i in range(50 * 3 * jax.local_device_count())])
    engine.threads.shutdown()
    assert len(started) <= engine.sizes.calls + 2
