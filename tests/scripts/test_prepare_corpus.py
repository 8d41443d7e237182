"""scripts/prepare_corpus.py: a corpus tokenized in advance; kills, signals, two at once, errors."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import open_parts
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.data.tokens.encoded_corpus import encode_parts
from seq2seq.runtime.errors import CONFIGURATION, DATA, OUTPUT
from seq2seq.runtime.logs import no_log
from seq2seq.runtime.signals import StopFlag
from seq2seq.scripts import prepare_corpus
from tests.support import in_process
from tests.support.forked import call_forked
from tests.support.tiny import tiny_flags, write_corpus

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "prepare_corpus.py"
FIELDS = {"tokenizer": "words", "vocab_size": 64, "source_length": 16, "target_length": 16}
FLAGS = [f"--config.data.{name}={value}" for name, value in FIELDS.items()]
PAIRS, LINES = 600, 16  # in the corpus and in a block of SLOW
# The script with small blocks, two workers and slow writes.
SLOW = f"""
import runpy, sys, time
sys.path.insert(0, {str(ROOT)!r})
from seq2seq.data.corpora import blocks
from seq2seq.data.tokens import encoded_corpus
from seq2seq.data.tokens.store_writer import StoreWriter
blocks.BLOCK_LINES = encoded_corpus.BLOCK_LINES = {LINES}
encoded_corpus.LARGE = 0
encoded_corpus.usable_cores = lambda: 2
append = StoreWriter.append
seconds = float(sys.argv[1])
def slow(self, *arguments):
    time.sleep(seconds)
    append(self, *arguments)
StoreWriter.append = slow
sys.argv = [{str(SCRIPT)!r}, *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("data") / "pairs.tsv", PAIRS)


def arguments(spec, cache, *flags):
    return [*FLAGS, f"--config.data.corpus={spec}", f"--corpus_cache={cache}", *map(str, flags)]


def call(spec, cache, *flags):
    """(exit code, stdout, lines of stderr); any use of a device is an error."""
    return call_forked([SCRIPT, *arguments(spec, cache, *flags)], devices=0)[:3]


def start(spec, cache, seconds=0.1, **options):
    """The script as a process of its own group; each append takes so many seconds more."""
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(seconds), *arguments(spec, cache)],
        env={**os.environ, "JAX_PLATFORMS": "none_may_be_initialised"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def finished(process):
    """(stdout, stderr) of a process that succeeds."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "Traceback" not in err, err
    return out, err


def entries(cache):
    return sorted(path for path in (Path(cache) / "corpora").glob("*") if path.is_dir())


def assert_is_prepared(spec, cache):
    """The entry is complete and has the pairs that are encoded from the text."""
    config = DataConfig(corpus=spec, **FIELDS)
    corpus = open_parts(spec, "train", config)
    lines = Path(spec[4:]).read_text(encoding="utf-8").splitlines()
    sides = ([line.split("\t")[side] for line in lines] for side in (0, 1))
    tokenizers = train_tokenizers(config, *sides)
    wanted = encode_parts(corpus, config, tokenizers, None, no_log)
    prepared = encode_parts(corpus, config, tokenizers, CorpusCache(Path(cache), 1 << 40), no_log)
    assert prepared.encoded[0].store is not wanted.encoded[0].store
    assert hasattr(prepared.encoded[0].store, "facts"), "not from the cache"
    index = np.arange(len(wanted))
    assert len(prepared) == len(wanted)
    for side, wanted_side in zip(prepared.select(index)[:2], wanted.select(index)[:2], strict=True):
        np.testing.assert_array_equal(side.ids, wanted_side.ids)
        np.testing.assert_array_equal(side.offsets, wanted_side.offsets)
    assert prepared.hashes == wanted.hashes and prepared.counts == wanted.counts


def appended(cache):
    """How many blocks are in the journal of the only entry; 0 before it exists."""
    journals = list(Path(cache).glob("corpora/*/progress.jsonl"))
    return journals[0].read_bytes().count(b"\n") - 1 if journals else 0


def wait_for(condition, process, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def running(group):
    """The processes of a group that have not ended."""
    process_ids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == group and state != "Z":
            process_ids.append(int(path.parent.name))
    return process_ids


def test_a_corpus_is_prepared_once(spec, tmp_path):
    cache = tmp_path / "cache"
    code, out, err = call(spec, cache)
    assert (code, out) == (0, f"{spec[4:]}: {PAIRS} pairs in {cache / 'corpora'}\n")
    (entry,) = entries(cache)
    assert len(err) == 2
    assert err[0].startswith(f"{spec[4:]}: {PAIRS} pairs in {entry} after ")
    assert err[1] == f"train: {PAIRS} pairs kept, 0 dropped"
    assert_is_prepared(spec, cache)
    before = {path: path.stat().st_mtime_ns for path in entry.iterdir()}
    used = [f"{spec[4:]}: {PAIRS} pairs from the corpus cache {cache}", err[1]]
    assert call(spec, cache, "--config.training.seed=5") == (0, out, used)
    assert call("3*" + spec, cache) == (0, out, used)
    assert {path: path.stat().st_mtime_ns for path in entry.iterdir()} == before
    assert {path.name for path in cache.iterdir()} == {"corpora", "vocabularies"}
    assert {path.name for path in Path(spec[4:]).parent.iterdir()} == {"pairs.tsv"}


def test_all_parts_of_a_mixture_are_prepared(spec, tmp_path):
    other_spec = write_corpus(tmp_path / "b.tsv", 7, seed=1)
    mixture = f"2*{spec} + tag:>>x<<:{other_spec}"
    missing = "--config.data.valid=tsv:missing.tsv", "--config.data.test=a=tsv:b; c=tsv:d"
    code, out, _ = call(mixture, tmp_path / "cache", *missing)  # held-out data is not needed
    corpora = tmp_path / "cache" / "corpora"
    lines = [f"{spec[4:]}: {PAIRS} pairs in {corpora}", f"{other_spec[4:]}: 7 pairs in {corpora}"]
    assert (code, out.splitlines()) == (0, lines)
    assert len(entries(tmp_path / "cache")) == 2


def refused(code, result):
    """The one line of an error; fails if there is a traceback."""
    assert (result[0], result[1]) == (code, "") and len(result[2]) == 1, result
    assert result[2][0].startswith("error: ")
    return result[2][0]


def test_wrong_use_is_refused_in_one_line(spec, tmp_path):
    message = refused(CONFIGURATION, call(spec, "off"))
    assert "got --corpus_cache=off; set --corpus_cache=DIR" in message
    read, write = os.pipe()
    os.close(write)
    message = refused(CONFIGURATION, call("tsv:/dev/stdin", tmp_path / "cache"))
    os.close(read)
    assert message.startswith("error: /dev/stdin is not a regular file: expected files that")
    message = refused(OUTPUT, call(spec, f"{spec[4:]}/cache"))
    assert "pairs.tsv/cache/corpora/" in message and "cannot be written: Not a dir" in message
    assert not (tmp_path / "cache").exists()


def test_a_signal_during_the_exit_is_ignored(tmp_path, monkeypatch):
    stop = StopFlag()
    monkeypatch.setattr(in_process, "StopFlag", lambda: stop)
    done = in_process.call_in_process(prepare_corpus, *arguments("tsv:none", tmp_path / "cache"))
    stop.set(signal.SIGTERM)
    assert done.code == DATA


def test_invalid_lines_leave_no_entry(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"w1\tW1\n" * 5 + b"w1\n" + b"w1\tW1\n" * 5 + b"w1\xff\tW1\n")
    message = refused(DATA, call(f"tsv:{path}", tmp_path / "cache"))
    assert f"got 1 at {path}:6" in message and f"{path}:12" in message
    assert entries(tmp_path / "cache") == []
    message = refused(DATA, call(f"tsv:{tmp_path / 'none.tsv'}", tmp_path / "cache"))
    assert "none.tsv does not exist" in message


@pytest.mark.slow
def test_a_killed_preparation_is_continued(spec, tmp_path):
    cache, done = tmp_path / "cache", 0
    for _ in range(2):
        process = start(spec, cache)
        wait_for(lambda done=done: appended(cache) > done + 2, process)
        process.kill()
        process.communicate()
        assert done + 2 < appended(cache) < PAIRS // LINES
        done = appended(cache)
        limit = time.monotonic() + 5
        while running(process.pid):  # the workers end when their parent has ended
            assert time.monotonic() < limit
            time.sleep(0.1)
    out, err = finished(start(spec, cache, seconds=0))
    (line,) = [line for line in err.splitlines() if "continues after" in line]
    assert f"{spec[4:]}: continues after {LINES * done} pairs in {entries(cache)[0]}" == line
    assert out == f"{spec[4:]}: {PAIRS} pairs in {cache / 'corpora'}\n"
    finished(start(spec, tmp_path / "other", seconds=0))
    for path in entries(tmp_path / "other")[0].iterdir():
        assert path.read_bytes() == (entries(cache)[0] / path.name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_quickly_and_the_entry_is_continued(spec, tmp_path, number):
    cache = tmp_path / "cache"
    process = start(spec, cache)
    wait_for(lambda: appended(cache) > 2, process)
    assert len(running(process.pid)) >= 3  # with two workers
    os.killpg(process.pid, number)  # as a terminal does
    started = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - started < 2
    line = f"stopped by {number.name}; run the same command to resume\n"
    assert (process.returncode, out, err) == (128 + number, "", line)
    while running(process.pid):
        assert time.monotonic() - started < 5
        time.sleep(0.1)
    assert 2 < appended(cache) < PAIRS // LINES
    assert "continues after" in finished(start(spec, cache, seconds=0))[1]


@pytest.mark.slow
def test_two_processes_that_prepare_the_same_corpus_share_the_work(spec, tmp_path):
    cache = tmp_path / "cache"
    first = start(spec, cache)
    wait_for(lambda: appended(cache) > 0, first)
    first.send_signal(signal.SIGSTOP)  # it cannot finish before the second has started
    try:
        second = start(spec, cache)
        waiting = second.stderr.readline()
    finally:
        first.send_signal(signal.SIGCONT)
    results = [process.communicate(timeout=120) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], results
    assert results[0][0] == results[1][0] == f"{spec[4:]}: {PAIRS} pairs in {cache / 'corpora'}\n"
    (entry,) = entries(cache)
    assert waiting == f"waiting for another process that writes {entry}\n"
    assert results[1][1] == f"train: {PAIRS} pairs kept, 0 dropped\n"
    assert "waiting" not in results[0][1]


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line(spec, tmp_path):
    def limit():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))

    cache = tmp_path / "cache"
    process = start(spec, cache, preexec_fn=limit)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (OUTPUT, "")
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in err, err
    assert "cannot be written: File too large; free disk space" in errors[0]
    assert appended(cache) > 0
    assert "continues after" in finished(start(spec, cache, seconds=0))[1]
    assert (entries(cache)[0] / "store.json").exists()


@pytest.mark.slow
def test_training_uses_a_prepared_corpus_and_deletes_it_if_it_is_damaged(tmp_path):
    """A flipped bit is found when its block is read; the next start writes the entry again."""
    spec, cache = write_corpus(tmp_path / "pairs.tsv", 12_000), tmp_path / "cache"
    assert call(spec, cache)[0] == 0
    (entry,) = entries(cache)
    path, flags = entry / "offsets.npy", tiny_flags("model", "training", "decoding")
    before = path.read_bytes()

    def train(run):
        command = [ROOT / "train.py", *arguments(spec, cache, f"--workdir={tmp_path / run}")]
        return call_forked([*command, *flags, "--config.training.num_steps=4"])

    done = train("run")
    used = [line for line in done.err if str(cache) in line]
    assert done.code == 0, done.err
    assert used == [f"{spec[4:]}: 12,000 pairs from the corpus cache {cache}"]
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    done = train("damaged")
    errors = [line for line in done.err if line.startswith("error: ")]
    assert done.code == DATA and len(errors) == 1 and not entry.exists(), done.err
    assert f"{path} is damaged" in errors[0] and f"{entry} was deleted, so run" in errors[0]
    assert not any("Traceback" in line for line in done.err)
    done = train("damaged")
    assert done.code == 0 and path.read_bytes() == before, done.err
    assert any(f"{spec[4:]}: 12,000 pairs in {entry} after" in line for line in done.err)
