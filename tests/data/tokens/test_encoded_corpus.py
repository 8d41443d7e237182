"""Token ids of a corpus: the same in memory, from the cache, in workers, and after any fault."""

import errno
import json
import os
import pickle
from concurrent.futures import Future
from functools import cache as cached
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import open_parts, read_corpus
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens import encoded_corpus, encoding
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.data.tokens.encoded_corpus import encode_parts, store_key
from seq2seq.data.tokens.encoding import encoded_blocks
from seq2seq.data.tokens.store_writer import StoreWriter
from seq2seq.runtime.errors import CONFIGURATION, DATA, INTERNAL, OUTPUT, UserError
from seq2seq.runtime.logs import no_log
from seq2seq.runtime.workers import WorkerLost, Workers

WORDS = [f"w{i}" for i in range(9)]
LENGTHS = {"source_length": 7, "target_length": 6}


@cached
def tokenizers(joint=True):
    config = DataConfig(tokenizer="words", joint_vocab=joint)
    return train_tokenizers(config, [" ".join(WORDS)], [" ".join(WORDS).upper()], [">>x<<"])


@pytest.fixture
def small(monkeypatch):
    """Sets the lines of a block."""

    def limit(lines):
        for module in ("corpora.blocks", "tokens.encoded_corpus"):
            monkeypatch.setattr(f"seq2seq.data.{module}.BLOCK_LINES", lines)

    limit(5)
    return limit


@pytest.fixture
def cache(tmp_path):
    return CorpusCache(tmp_path / "cache", 0)


def write_text(path, count=37, seed=0, weighted=False):
    """Lines `source<TAB>target`; some are too long, blank, twice in the file."""
    random = np.random.default_rng(seed)
    lines = []
    for i in range(count):
        source = [WORDS[j] for j in random.integers(0, len(WORDS), random.integers(0, 9))]
        target = [word.upper() for word in source[::-1][: random.integers(1, 9)]]
        weight = [f"{random.integers(1, 5) / 4}"] * weighted
        lines.append("\t".join([" ".join(source), " ".join(target), *weight]))
        lines += lines[random.integers(0, i + 1) :][:1] * int(i % 7 == 6)
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"{'weighted_' * weighted}tsv:{path}"


@pytest.fixture
def spec(tmp_path):
    return write_text(tmp_path / "a.tsv")


def config_of(spec, **options):
    return DataConfig(**{"corpus": spec, "tokenizer": "words", **LENGTHS, **options})


def encode(spec, cache=None, log=no_log, **options):
    config = config_of(spec, **options)
    return encode_parts(open_parts(spec, "train", config), config, tokenizers(), cache, log)


def sequences(side):
    return [side.ids[i:j].tolist() for i, j in pairwise(side.offsets)]


def listed(pairs):
    """All that is known of the training pairs, as JSON."""
    index = np.arange(len(pairs))
    chosen = pairs.select(index)
    weights = None if chosen.loss_weights is None else chosen.loss_weights.tolist()
    sides = sequences(chosen.source), sequences(chosen.target)
    facts = [pairs.counts.to_json(), pairs.hashes, pairs.parts, pairs.locate(index)]
    return json.loads(json.dumps([*sides, weights, *facts]))


def expected(spec, **options):
    """Expected values from the whole text, pair by pair: sides, loss weights, places, counts."""
    config, kept = config_of(spec, **options), []
    corpus = read_corpus(spec, "train", config)
    dropped = dict(corpus.counts.dropped)
    for i, texts in enumerate(zip(corpus.source, corpus.target, strict=True)):
        source, target = (
            tokenizer.encode(text) for tokenizer, text in zip(tokenizers(), texts, strict=True)
        )
        ratio = max(len(source), len(target)) / min(len(source), len(target))
        reason = None
        if config.max_length_ratio and ratio > config.max_length_ratio:
            reason = f"length ratio above {config.max_length_ratio:g}"
        if len(target) + 1 > config.target_length:
            reason = f"target longer than {config.target_length - 1} tokens"
        if len(source) + 1 > config.source_length:
            reason = f"source longer than {config.source_length - 1} tokens"
        if reason:
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            weight = 1.0 if corpus.loss_weights is None else corpus.loss_weights[i]
            kept.append((source, target, weight, corpus.where(i)))
    sources, targets, weights, places = map(list, zip(*kept, strict=True))
    weights = None if corpus.loss_weights is None else weights
    return sources, targets, weights, places, (len(kept), dropped), corpus.fingerprints


def assert_equals_text(pairs, spec, **options):
    sources, targets, weights, places, (kept, dropped), hashes = expected(spec, **options)
    actual = listed(pairs)
    assert (actual[0], actual[1], actual[2], actual[6]) == (sources, targets, weights, places)
    assert (actual[3]["kept"], actual[3]["dropped"], actual[4]) == (kept, dropped, hashes)
    assert kept < len(places) + sum(dropped.values())


class SameProcess:
    """Workers without processes: pickles what is sent, and finishes the last task first."""

    def __init__(self, count):
        self.count, self.tasks, self.waiting = count, [], 0

    def submit(self, function, *arguments):
        future, content = Future(), pickle.dumps((function, arguments))
        self.tasks.append((future, content))
        future.result = lambda: self.run(future)
        return future

    def run(self, wanted):
        results, self.waiting = {}, max(self.waiting, len(self.tasks))
        for future, content in reversed(self.tasks):
            function, arguments = pickle.loads(content)
            results[future] = pickle.loads(pickle.dumps(function(*arguments)))
        self.tasks = [task for task in self.tasks if task[0] is not wanted]
        return results[wanted]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.tasks = None


@pytest.mark.parametrize("lines", [1, 4, 1000])
@pytest.mark.parametrize("place", ["memory", "cache", "workers"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reverse": True, "deduplicate": True, "source_length": 5},
        {"max_length_ratio": 2.0, "on_bad_utf8": "skip", "on_bad_line": "skip"},
    ],
    ids=["", "reversed without duplicates", "ratio"],
)
def test_the_token_ids_are_those_of_the_text(
    tmp_path, spec, cache, small, monkeypatch, lines, place, options
):
    small(lines)
    if "on_bad_line" in options:
        with open(tmp_path / "a.tsv", "ab") as file:
            file.write(b"w1\xff\tW1\nw1\nw1\tW1\n")
    weighted = write_text(tmp_path / "b.tsv", 23, 1, weighted=True)
    mixture = f"{spec} + 0.5*tag:>>x<<:{weighted} + 3*tag:>>y<<:{spec}"
    if place == "workers":
        monkeypatch.setattr(encoded_corpus, "LARGE", 0)
        monkeypatch.setattr(encoded_corpus, "Workers", SameProcess)
        monkeypatch.setattr(encoded_corpus, "usable_cores", lambda: 2)
    pairs = encode(mixture, cache if place == "cache" else None, **options)
    assert_equals_text(pairs, mixture, **options)
    assert [part.weight for part in pairs.encoded] == [1, 0.5, 3]
    if place == "cache":
        assert listed(encode(mixture, cache, **options)) == listed(pairs)


def test_spawned_workers_give_the_same_and_are_ended(spec, small, monkeypatch):
    whole, made = listed(encode(spec)), []
    monkeypatch.setattr(encoded_corpus, "LARGE", 0)
    monkeypatch.setattr(encoded_corpus, "Workers", lambda _: made.append(Workers(2)) or made[0])
    assert listed(encode(spec)) == whole and len(made) == 1
    with pytest.raises(RuntimeError, match="closed"):
        made[0].submit(os.getpid)


def test_the_number_of_workers_is_that_of_the_usable_cores(spec, monkeypatch):
    """Of a thousand cores eight are usable, as docs/TRAINING.md states."""
    counts = []
    monkeypatch.setattr(
        encoded_corpus, "Workers", lambda count: counts.append(count) or SameProcess(count)
    )
    monkeypatch.setattr(encoded_corpus, "LARGE", Path(spec[4:]).stat().st_size)
    encode(spec)
    assert counts == []
    monkeypatch.setattr(encoded_corpus, "LARGE", Path(spec[4:]).stat().st_size - 1)
    for cores in (3, 1000):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        encode(spec)
    assert counts == [3, 8]


def test_a_bounded_number_of_blocks_waits_for_the_workers(spec, small):
    (reader,) = open_parts(spec, "train", config_of(spec))
    small(1)
    for count in (1, 3):
        workers = SameProcess(count)
        task = reader, config_of(spec), tokenizers(), workers, 0, no_log
        assert sum(block.counts.kept for block in encoded_blocks(*task)) == len(encode(spec))
        assert workers.waiting == encoding.AHEAD * count


def no_reading(monkeypatch):
    def refuse(*_):
        raise AssertionError("the text is read")

    monkeypatch.setattr("seq2seq.data.corpora.part_reader.PartReader.blocks", refuse)


def entries(cache):
    return sorted(path for path in cache.corpora.iterdir() if path.is_dir())


# What is stored, and under which key


def test_a_cached_corpus_is_used_without_reading_the_text(tmp_path, spec, cache, monkeypatch):
    other_spec = write_text(tmp_path / "b.tsv", seed=1)
    pairs = listed(encode(f"{spec} + 2*{other_spec}", cache))
    no_reading(monkeypatch)
    logged = []
    assert listed(encode(f"{spec} + 2*{other_spec}", cache, logged.append)) == pairs
    assert len(logged) == 2 and all(str(cache.directory) in line for line in logged)
    assert spec[4:] in logged[0] and other_spec[4:] in logged[1]
    small_only = CorpusCache(cache.directory, 1 << 40)  # prepared in advance
    assert listed(encode(f"{spec} + 2*{other_spec}", small_only)) == pairs


def test_one_part_of_a_mixture_can_be_cached(tmp_path, spec, monkeypatch):
    size = Path(spec[4:]).stat().st_size
    short = write_text(tmp_path / "b.tsv", 5, seed=1)
    cache = CorpusCache(tmp_path / "cache", size)
    mixture = f"{short} + {spec}"
    assert listed(encode(mixture, cache)) == listed(encode(mixture))
    assert [json.loads((entry / "store.json").read_text())["key"]["text"]["corpus"]
            for entry in entries(cache)] == [spec]  # fmt: skip
    assert listed(encode(mixture, cache)) == listed(encode(mixture))


def key_of(spec, words=None, **options):
    config = config_of(spec, **options)
    (reader,) = open_parts(spec, "train", config)
    return json.dumps(store_key(reader, config, words or tokenizers()))


def test_the_key_has_all_that_determines_the_token_ids(tmp_path, spec, monkeypatch):
    copy = tmp_path / "b.tsv"
    copy.write_bytes(Path(spec[4:]).read_bytes())
    os.utime(copy, ns=(0, Path(spec[4:]).stat().st_mtime_ns))
    tokenizer, _ = tokenizers()
    longer = train_tokenizers(DataConfig(tokenizer="words"), ["a b"], ["c"])[0]
    keys = [
        key_of(spec),
        key_of(f"tsv:{copy}"),
        key_of(f"weighted_tsv:{spec[4:]}"),
        key_of(spec, (tokenizer, longer)),
        key_of(spec, (longer, tokenizer)),
        key_of(spec, source_length=6),
        key_of(spec, target_length=7),
        key_of(spec, source_length=6, target_length=7),
        key_of(spec, max_length_ratio=3.0),
        key_of(spec, reverse=True),
        key_of(f"tag:x:{spec}"),
        key_of(f"tag:y:{spec}"),
        key_of(spec, on_bad_utf8="skip"),
        key_of(spec, on_bad_utf8="replace"),
        key_of(spec, on_bad_line="skip"),
        key_of(spec, deduplicate=True),
        key_of(spec, nfc=False),
        *(key_of(spec, **{name: "<s>"}) for name in ("source_begin", "source_end", "target_begin")),
    ]
    assert key_of(spec, target_start="<s>", target_language="x") == keys[0]
    for name in ("VERSION", "BLOCK_LINES", "BLOCK_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(encoded_corpus, name, 3)
            keys.append(key_of(spec))
    os.utime(spec[4:], ns=(0, 5))
    keys.append(key_of(spec))
    with open(spec[4:], "a") as file:
        file.write("w1\tW1\n")
    os.utime(spec[4:], ns=(0, 5))
    keys.append(key_of(spec))
    assert len(set(keys)) == len(keys)


def test_the_key_does_not_depend_on_anything_else(tmp_path, spec, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unused = {"vocab_size": 99, "valid": spec, "user_defined": ">>x<<"}
    other_specs = ["2*" + spec, "tsv:a.tsv", f"tsv:{tmp_path}/../{tmp_path.name}/a.tsv"]
    keys = {key_of(corpus) for corpus in [spec, *other_specs]} | {key_of(spec, **unused)}
    assert keys == {key_of(spec)}
    assert json.loads(key_of(spec))["text"]["files"][0][0] == str(tmp_path / "a.tsv")


def test_paths_are_those_of_the_run_that_uses_an_entry(tmp_path, spec, cache, monkeypatch):
    pairs = listed(encode(f"text:{spec[4:]},{spec[4:]}", cache, reverse=True))
    monkeypatch.chdir(tmp_path)
    Path("c:1").write_bytes(Path("a.tsv").read_bytes())
    for path, alias in (("a.tsv", "./a.tsv"), ("c:1", str(tmp_path / "c:1"))):
        specs = [f"text:{path},{tmp_path / 'a.tsv'}", f"text:{alias},a.tsv"]
        by_name = [listed(encode(name, place, source_length=4, target_length=5))
                   for place in (cache, None) for name in specs]  # fmt: skip
        assert by_name[0] == by_name[2] and by_name[1] == by_name[3] != by_name[0]
        assert set(by_name[1][4]) == {alias, "a.tsv"}
        assert len(entries(cache)) == (2 if path == "a.tsv" else 3)
    assert pairs[4].keys() == {spec[4:]}


def test_a_changed_corpus_is_read_again(spec, cache):
    encode(spec, cache)
    before = entries(cache)
    with open(spec[4:], "a") as file:
        file.write("w1 w2\tW2\n" * 3)
    pairs = encode(spec, cache)
    assert_equals_text(pairs, spec)
    assert len(entries(cache)) == 1 and entries(cache) != before


def test_without_a_cache_nothing_is_written_and_a_damaged_entry_is_not_used(tmp_path, spec, cache):
    before = set(tmp_path.iterdir())
    pairs = listed(encode(spec))
    assert listed(encode(spec, CorpusCache(tmp_path / "cache", 1 << 20))) == pairs
    assert set(tmp_path.iterdir()) == before
    encode(spec, cache)
    (entry,) = entries(cache)
    os.truncate(entry / "ids.npy", 200)
    assert listed(encode(spec, CorpusCache(cache.directory, 1 << 20))) == pairs
    assert (entry / "ids.npy").stat().st_size == 200
    assert listed(encode(spec, cache)) == pairs and (entry / "ids.npy").stat().st_size > 200


def test_a_small_corpus_does_not_need_a_readable_cache(spec, cache, monkeypatch):
    stat = os.stat

    def guarded(path, **options):
        if str(path).startswith(str(cache.directory)):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, **options)

    pairs = listed(encode(spec))
    monkeypatch.setattr(os, "stat", guarded)
    assert listed(encode(spec, CorpusCache(cache.directory, 1 << 20))) == pairs
    with pytest.raises(UserError, match="cannot be written: Permission denied") as refused:
        encode(spec, cache)
    assert refused.value.code == OUTPUT


def test_a_pipe_is_never_cached(spec, cache):
    read, write = os.pipe()
    os.write(write, Path(spec[4:]).read_bytes())
    os.close(write)
    piped, wanted = listed(encode(f"tsv:/dev/fd/{read}", cache)), listed(encode(spec))
    os.close(read)
    assert piped[:3] == wanted[:3] and piped[3]["dropped"] == wanted[3]["dropped"]
    assert not cache.directory.exists()


def test_the_largest_id_is_that_of_the_larger_vocabulary(spec, cache, monkeypatch):
    largest = []
    monkeypatch.setattr(
        encoded_corpus, "StoreWriter", lambda *args: largest.append(args[2]) or StoreWriter(*args)
    )
    encode(spec, cache)
    (size,) = {tokenizer.size for tokenizer in tokenizers()}
    assert largest == [size - 1]


# Interrupted writes


def stop_after(monkeypatch, blocks, error):
    """Fail when block number `blocks` is encoded; returns the first lines of those encoded."""
    encode_block, done = encoding.encode_block, []

    def counted(part, names, config, vocabularies, block):
        done.append(getattr(block, "first", None))
        if len(done) == blocks:
            raise error
        return encode_block(part, names, config, vocabularies, block)

    monkeypatch.setattr(encoding, "encode_block", counted)
    return done


def fill_disk_after(monkeypatch, blocks):
    """Only a part of append number `blocks` can be written."""
    append, done, pwrite = StoreWriter.append, [], os.pwrite

    def full(file, content, position):
        pwrite(file, content[: len(content) // 2], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    def counted(self, *arguments):
        done.append(1)
        if len(done) == blocks:
            monkeypatch.setattr(os, "pwrite", full)
        append(self, *arguments)

    monkeypatch.setattr(StoreWriter, "append", counted)


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt, WorkerLost(INTERNAL, "lost"), OSError(errno.EAGAIN, "No process"), None],
    ids=["interrupt", "lost worker", "no worker", "full disk"],
)
def test_an_interrupted_entry_is_continued_after_the_blocks_that_are_done(
    spec, cache, small, monkeypatch, error, deduplicate
):
    wanted, total = listed(encode(spec, deduplicate=deduplicate)), 0
    fresh = CorpusCache(cache.directory.with_name("fresh"), 0)
    encode(spec, fresh, deduplicate=deduplicate)
    logged = []
    for blocks in (1, 3, 2):
        with monkeypatch.context() as patch:
            stop_after(patch, blocks, error) if error else fill_disk_after(patch, blocks)
            with pytest.raises((KeyboardInterrupt, UserError)) as stopped:
                encode(spec, cache, logged.append, deduplicate=deduplicate)
        if isinstance(error, OSError):
            assert stopped.value.code == INTERNAL
            assert "a.tsv cannot be tokenized: [Errno 11] No process;" in str(stopped.value)
        elif not error:
            assert stopped.value.code == OUTPUT
            assert "cannot be written: No space left on device;" in str(stopped.value)
        total += blocks - 1
    continues = [line for line in logged if "continues after" in line]
    assert len(continues) == 1 and str(entries(cache)[0]) in continues[0]
    with monkeypatch.context() as patch:
        done = stop_after(patch, 0, error)
        assert listed(encode(spec, cache, deduplicate=deduplicate)) == wanted
    lines = len(Path(spec[4:]).read_text().splitlines())
    assert len(done) == -(-lines // 5) - total
    if not deduplicate:
        assert done[0] == 5 * total + 1
    for path in entries(fresh)[0].iterdir():
        assert path.read_bytes() == (entries(cache)[0] / path.name).read_bytes()


def test_invalid_lines_of_all_blocks_are_reported_also_after_a_kill(
    spec, cache, small, monkeypatch
):
    lines = Path(spec[4:]).read_bytes().splitlines(keepends=True)
    for place in (2, 17, 30):
        lines[place] = b"w1 w2\n"
    lines[21] = b"w1\xff\tW1\n"
    Path(spec[4:]).write_bytes(b"".join(lines))
    with pytest.raises(UserError) as wanted:
        read_corpus(spec, "train", config_of(spec))
    assert "3 invalid lines" in str(wanted.value) and ":22" in str(wanted.value)
    for blocks in (0, 3, 6):
        with monkeypatch.context() as patch:
            stop_after(patch, blocks, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt if blocks else UserError):
                encode(spec, cache)
        assert len(entries(cache)) == (blocks > 0)
        for place in (cache, None):
            with pytest.raises(UserError) as refused:
                encode(spec, place)
            assert (refused.value.code, str(refused.value)) == (DATA, str(wanted.value))
        assert entries(cache) == []


@pytest.mark.parametrize("change", ["append", "touch", "delete"])
def test_a_corpus_that_changes_while_it_is_tokenized_is_refused(
    spec, cache, small, monkeypatch, change
):
    encode_block, path = encoding.encode_block, Path(spec[4:])

    def changing(*task):
        if change == "append" and path.stat().st_size < 10_000:
            with open(path, "a") as file:
                file.write("w1\tW1\n" * 2_000)
        elif change == "touch":
            os.utime(path, ns=(0, 5))
        elif change == "delete":
            path.unlink(missing_ok=True)
        return encode_block(*task)

    monkeypatch.setattr(encoding, "encode_block", changing)
    with pytest.raises(UserError, match=r"changed while|cannot be read") as refused:
        encode(spec, cache)
    assert refused.value.code == DATA and str(path) in str(refused.value)
    assert entries(cache) == []


def test_a_corpus_that_changed_while_its_vocabulary_was_trained_is_refused(spec, cache):
    """Its old text is in memory; it must not be stored as that of the new file."""
    config = config_of(spec)
    readers = open_parts(spec, "train", config)
    list(readers[0].blocks())
    with open(spec[4:], "a") as file:
        file.write("w1\tW1\n")
    with pytest.raises(UserError, match="a.tsv changed while it was read") as refused:
        encode_parts(readers, config, tokenizers(), cache, no_log)
    assert refused.value.code == DATA and entries(cache) == []
    assert_equals_text(encode(spec, cache), spec)


# Corpora of which nothing is taken


@pytest.mark.parametrize("in_cache", [True, False])
def test_a_weight_that_takes_no_pair_is_refused(tmp_path, spec, cache, in_cache):
    other_file = tmp_path / "b.tsv"
    other_file.write_text("w1\tW1\n" * 5)
    place = cache if in_cache else None
    for _ in range(2):
        with pytest.raises(
            UserError, match=f"{other_file}: .* 0.1 takes none of 5 pairs"
        ) as refused:
            encode(f"{spec} + 0.1*tsv:{other_file}", place)
        assert refused.value.code == CONFIGURATION
    assert encode(f"{spec} + 0.2*tsv:{other_file}", place).parts[1] == (5, 0.2)


@pytest.mark.parametrize("in_cache", [True, False])
def test_a_part_without_pairs_is_refused_with_the_counts(tmp_path, spec, cache, in_cache):
    other_file = tmp_path / "b.tsv"
    other_file.write_text(
        "w1 w1 w1 w1 w1 w1 w1\tW1\n" * 3 + "\tW1\n" + "w1\tW1 W1 W1 W1 W1 W1\n" * 2
    )
    with pytest.raises(UserError) as refused:
        encode(f"{spec} + tsv:{other_file}", cache if in_cache else None)
    assert refused.value.code == DATA
    message = str(refused.value)
    assert message.startswith(
        f"{other_file}: 0 of 6 pairs left: 1 blank, 3 source longer than 6 tokens"
    )
    assert "2 target longer than 5 tokens; see config.data.source_length" in message
    if in_cache:
        assert len(entries(cache)) == 1  # of the other part


def test_loss_weights_of_0_are_refused(tmp_path, cache):
    path = tmp_path / "w.tsv"
    long = " ".join(["w1"] * 1000)  # is dropped
    path.write_text("w1\tW1\t0\n" * 3 + f"{long}\tW1\t1\n")
    for place in (cache, None):
        with pytest.raises(UserError, match="all loss weights are 0") as refused:
            encode(f"weighted_tsv:{path}", place)
        assert refused.value.code == DATA
    assert entries(cache) == []


def test_progress_has_the_throughput_and_events_are_never_dropped(spec, cache, small, monkeypatch):
    now = [7.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    encode_block = encoding.encode_block

    def slow(*task):
        now[0] += 2.0
        return encode_block(*task)

    monkeypatch.setattr(encoding, "encode_block", slow)
    logged = []
    pairs = encode(spec, cache, logged.append)
    blocks = -(-len(Path(spec[4:]).read_text().splitlines()) // 5)
    progress = [line for line in logged if line.endswith("pairs/s")]
    assert len(progress) == blocks // 3 and len(logged) == len(progress) + 1
    title, kept, _, _, rate, _ = progress[0].split()
    places = pairs.locate(np.arange(len(pairs)))
    assert int(kept) == sum(int(place.rpartition(":")[2]) <= 15 for place in places)
    assert title == f"{spec[4:]}:" and abs(int(rate) - int(kept) / 6) <= 0.5
    assert logged[-1].startswith(f"{spec[4:]}: ")
    assert logged[-1].endswith(f" pairs in {entries(cache)[0]} after {2 * blocks} s")
