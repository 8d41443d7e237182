"""Long jobs: parts that make the whole, and chunks that are made once."""

import contextlib
import gzip
import itertools
import operator
import os

import pytest

from data.errors import CONFIGURATION, OUTPUT, UserError
from decoding import jobs, work
from decoding.formats import Hypothesis, Item
from decoding.jobs import Chunks, fingerprint, shard_lines, shard_of
from decoding.translator import Translation
from training.config import DecodingConfig


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(jobs, "CHUNK", 7)


class Killed(BaseException):
    pass


class Worker:
    """Upper case; remembers what it was given, and dies before item `dies`."""

    def __init__(self, dies=None):
        self.seen, self.dies = [], dies

    def __call__(self, first, items):
        for number, item in enumerate(items, start=first):
            if number == self.dies:
                raise Killed
            self.seen.append((number, item))
            yield item.upper()


LINES = [f"line {i}" for i in range(31)]
WHOLE = "".join(f"{line.upper()}\n" for line in LINES).encode()


def test_shards_one_after_the_other_are_all_lines():
    for lines in (0, 1, 7, 100):
        for parts in (1, 2, 3, 8, 130):
            found = [line for part in range(1, parts + 1)
                     for line in shard_lines(lines, part, parts)]
            assert found == list(range(lines))
            sizes = {len(shard_lines(lines, part, parts)) for part in range(1, parts + 1)}
            assert max(sizes) - min(sizes) <= 1


def test_a_shard_is_part_of_parts():
    assert shard_of("2/8") == (2, 8)
    for wrong in ("0/8", "9/8", "2", "2/", "/8", "a/b", "-1/8", "1/0"):
        with pytest.raises(UserError, match="PART/PARTS") as caught:
            shard_of(wrong)
        assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize("dies", [0, 6, 7, 13, 21, 30])
def test_what_was_finished_before_a_kill_is_not_done_again(tmp_path, dies):
    output = tmp_path / "out.txt"
    first, second = Worker(dies), Worker()
    with pytest.raises(Killed):
        Chunks(str(output), "same").run(LINES, first)
    assert not output.exists()
    done = dies // 7 * 7
    assert Chunks(str(output), "same").run(LINES, second) == done
    assert first.seen[:done] + second.seen == list(enumerate(LINES))
    assert output.read_bytes() == WHOLE
    assert os.listdir(tmp_path) == ["out.txt"]


def test_what_another_command_left_is_not_used(tmp_path):
    output = tmp_path / "out.txt"
    with pytest.raises(Killed):
        Chunks(str(output), "other").run(["x"] * 31, Worker(16))
    assert Chunks(str(output), "same").run(LINES, Worker()) == 0
    assert output.read_bytes() == WHOLE


def test_a_chunk_cut_off_by_a_kill_is_made_again(tmp_path):
    output = tmp_path / "out.txt"
    with pytest.raises(Killed):
        Chunks(str(output), "same").run(LINES, Worker(16))
    (tmp_path / "out.txt.parts" / "000002.tmp").write_text("HALF A LI")
    Chunks(str(output), "same").run(LINES, Worker())
    assert output.read_bytes() == WHOLE


def kill_at(monkeypatch, operation, survived):
    """Call number `survived` + 1 of a function of decoding.jobs is the last thing that happens."""
    real = operator.attrgetter(operation)(jobs)
    calls = itertools.count()

    def dying(*arguments, **options):
        if next(calls) == survived:
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(f"decoding.jobs.{operation}", dying)


@pytest.mark.parametrize("operation", ["os.makedirs", "os.rename", "write_whole",
                                       "shutil.rmtree"])
def test_a_kill_while_the_directory_is_made_or_removed_blocks_nothing(
    tmp_path, monkeypatch, operation
):
    output = tmp_path / "out.txt"
    with pytest.raises(Killed):
        Chunks(str(output), "other").run(["x"] * 31, Worker(16))
    for survived in range(4):
        with monkeypatch.context() as patch:
            kill_at(patch, operation, survived)
            with contextlib.suppress(Killed):
                Chunks(str(output), f"same {survived}").run(LINES, Worker())
    Chunks(str(output), "same").run(LINES, Worker())
    assert output.read_bytes() == WHOLE


def test_no_foreign_directory_is_touched(tmp_path):
    (tmp_path / "out.txt.parts").mkdir()
    (tmp_path / "out.txt.parts" / "mine").write_text("mine")
    with pytest.raises(UserError, match="in the way") as caught:
        Chunks(str(tmp_path / "out.txt"), "same")
    assert caught.value.code == OUTPUT
    assert (tmp_path / "out.txt.parts" / "mine").read_text() == "mine"


def test_gzip_by_suffix_and_the_same_bytes_each_time(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Chunks(str(tmp_path / name / "out.gz"), "same").run(LINES, Worker())
    one, other = ((tmp_path / name / "out.gz").read_bytes() for name in ("a", "b"))
    assert gzip.decompress(one) == WHOLE
    assert one == other


def test_a_fingerprint_follows_facts_and_contents(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("one")
    before = fingerprint({"a": 1, "b": 2}, str(tmp_path / "d"))
    assert before == fingerprint({"b": 2, "a": 1}, str(tmp_path / "d" / "x"))
    assert before != fingerprint({"a": 1, "b": 3}, str(tmp_path / "d"))
    (tmp_path / "d" / "x").write_text("two")
    assert before != fingerprint({"a": 1, "b": 2}, str(tmp_path / "d"))


class Slow:
    """A translator that takes a tenth of a second a line, by the clock `now`."""

    decoding = DecodingConfig()
    now = 100.0

    def stream(self, items, first):
        for item in items:
            self.now += 0.1
            yield Translation([Hypothesis(item.text, 0.0)], 2, 2)


@pytest.mark.parametrize(("start", "behind", "interactive"), [
    (0, 0, False), (0, 900, False), (500, 900, False), (0, 0, True)])
def test_what_is_left_is_counted_from_the_place_in_the_job(
        monkeypatch, capsys, start, behind, interactive):
    """Not from the lines of this start: `behind` were there already, of 1,000 from `start` on."""
    translator = Slow()
    monkeypatch.setattr(work.time, "perf_counter", lambda: translator.now)
    job = work.Work(translator, "translate", "text", "in", start, 1000, interactive, False)
    items = [Item(str(i), str(i)) for i in range(behind, 1000)]
    assert [*job(behind, items)] == [str(i) for i in range(behind, 1000)]
    told = capsys.readouterr().err.splitlines()
    assert bool(told) != interactive
    for line in told:
        lines, left = (float(part.split()[0].replace(",", "")) for part in line.split(", ")[::2])
        assert left == pytest.approx((1000 - behind - lines) * 0.1, abs=1)
