"""Programs are compiled in threads, each once, while earlier ones run; errors reach the caller."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import pytest

from seq2seq.decoding.engine.compilation import CompilationAhead
from seq2seq.decoding.results import Item
from seq2seq.runtime.control import Control
from tests.support.models.echo import echoing_translator, in_time
from tests.support.models.quick_search import quick_searches
from tests.support.models.random_translator import translator_of
from tests.support.tiny import WORDS

SHORT, LONG = "eins zwei", " ".join(["drei"] * 20)  # buckets 16 and 32
COMPILATION = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled_on():
    """The names of the threads of all compilations."""
    names = []

    def listen(event, seconds, **_):
        if event == COMPILATION:
            names.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def logged():
    """The log of `translator`."""
    return []


@pytest.fixture
def translator(logged, compiled_on):
    """A translator whose programs are not compiled yet."""
    with quick_searches():
        yield translator_of(longest=32, control=Control(log=logged.append))


def test_only_the_programs_of_the_lines_are_compiled_in_threads_and_once(
    translator, logged, compiled_on
):
    compiled_on.clear()  # programs that make the parameters
    first = translator.translate([SHORT, "", SHORT])
    assert [name.startswith("compile") for name in compiled_on] == [True]
    assert logged == ["compiling the search, source tokens × sentences: 16 × 3"]
    both = translator.translate([LONG, SHORT] * 20)
    assert [name.startswith("compile") for name in compiled_on] == [True] * 2
    assert logged[1:] == ["compiling the search, source tokens × sentences: 32 × 3"]
    assert both[1] == first[0] and translator.translate([LONG]) == both[:1]
    assert len(compiled_on) == len(logged) == 2


def test_lines_with_a_prefix_use_a_separate_program_that_is_compiled_ahead(
    translator, logged, compiled_on
):
    compiled_on.clear()  # programs that make the parameters
    lines = [Item(SHORT, SHORT), Item(SHORT, SHORT, prefix="vier")]
    (_, translation) = translator.stream(lines)
    assert translation.text.startswith("vier") and len(logged) == len(compiled_on) == 1
    assert translator.translate([SHORT]) and len(logged) == len(compiled_on) == 2
    assert all(name.startswith("compile") for name in compiled_on)


def test_an_error_of_a_trace_reaches_the_caller():
    def broken(logits, normalizer, history, t, sentences):
        raise ZeroDivisionError("in a rule")

    with pytest.raises(ZeroDivisionError, match="in a rule"):
        translator_of().translate([SHORT, LONG], rules=broken)


def test_a_waiting_caller_is_polled_and_may_stop():
    ahead, release = CompilationAhead(), threading.Event()
    ahead.start("a", release.wait, 1)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_time_or_raise(partial(ahead.wait, "a", stop))
    release.set()
    in_time(partial(ahead.wait, "a", lambda: None))  # the error of the thread is dropped
    in_time(partial(ahead.wait, "not started", stop))


def in_time_or_raise(function):
    def run():
        try:
            return function()
        except BaseException as error:  # noqa: BLE001 – raised below
            return error

    if isinstance(result := in_time(run), BaseException):
        raise result
    return result


def test_cancelled_compilations_are_not_run_and_can_be_started_again():
    ahead, release, ran = CompilationAhead(), threading.Event(), []
    ahead.start("running", lambda: ran.append("running") or release.wait(60), 1)
    while not ran:
        pass
    ahead.start("waiting", lambda: ran.append("waiting"), 1)
    assert not ahead.start("running", lambda: ran.append("twice"), 1)
    ahead.cancel()
    release.set()
    assert "running" in ahead and "waiting" not in ahead
    in_time(partial(ahead.wait, "running", lambda: None))
    assert ran == ["running"]
    ahead.start("waiting", lambda: ran.append("again"), 1)
    in_time(partial(ahead.wait, "waiting", lambda: None))
    assert ran == ["running", "again"]


def test_threads_may_start_wait_for_and_cancel_compilations_at_the_same_time():
    """As the searches of a Translator that they share. Each key is started once."""
    ahead, lock, started = CompilationAhead(), threading.Lock(), []

    def work(thread):
        for number in range(100):
            for key in ((thread, number), ("shared", number)):
                if ahead.start(key, lambda: None, 1):
                    with lock:
                        started.append(key)
                ahead.wait(key, lambda: None)
            ahead.cancel()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the threads interrupt each other anywhere
    try:
        with ThreadPoolExecutor(8) as threads:
            in_time_or_raise(lambda: list(threads.map(work, range(8))))
    finally:
        sys.setswitchinterval(interval)
    assert len(started) >= 900


def test_threads_that_share_a_translator_get_their_own_lines():
    translator, _ = echoing_translator()
    texts = [[" ".join(WORDS[: 3 * i + k]) for i in range(4)] for k in range(1, 9)]

    def work(lines):
        return [translator.translate(lines) for _ in range(5)]

    with ThreadPoolExecutor(8) as threads:
        texts_of_threads = in_time_or_raise(lambda: list(threads.map(work, texts)))
    assert texts_of_threads == [[lines] * 5 for lines in texts]


def test_no_more_programs_than_threads_are_compiled_at_once():
    ahead, lock, running, most = CompilationAhead(), threading.Lock(), [0], [0]
    both = threading.Barrier(2)

    def work():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        both.wait(60)
        with lock:
            running[0] -= 1

    for key in range(6):
        ahead.start(key, work, 2)
    for key in range(6):
        in_time(partial(ahead.wait, key, lambda: None))
    assert most == [2]
