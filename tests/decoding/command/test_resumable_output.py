"""Resumable output: shards cover the input, and each result is computed once."""

import contextlib
import gzip
import itertools
import json
import operator
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.command import results_folder, resumable_output
from seq2seq.decoding.command.inputs import shard_lines, shard_of
from seq2seq.decoding.command.resumable_output import ResumableOutput, hash_of, job_fingerprint
from seq2seq.decoding.ensembles import members_of
from seq2seq.decoding.results import Item
from seq2seq.runtime.devices import DETERMINISTIC
from seq2seq.runtime.errors import CONFIGURATION, DATA, OUTPUT, UserError
from seq2seq.runtime.version import __version__

CHUNK = 7  # lines


class Killed(BaseException):
    pass


class Worker:
    """Upper-cases three lines at a time, the last one first; is killed before line `killed_at`."""

    def __init__(self, killed_at=None):
        self.seen, self.killed_at = [], killed_at

    def __call__(self, lines):
        lines = iter(lines)
        while window := list(itertools.islice(lines, 3)):
            if self.killed_at in [number for number, _ in window]:
                raise Killed
            self.seen += [number for number, _ in window]
            yield {number: item.line.upper() for number, item in reversed(window)}


LINES = [f"line {i}" for i in range(31)]
WHOLE = "".join(f"{line.upper()}\n" for line in LINES).encode()


def source(lines=LINES):
    return lambda: ((number, Item(line, line)) for number, line in enumerate(lines))


def job(output, fingerprint="same", overwrite=True):
    return ResumableOutput(str(output), fingerprint, CHUNK, overwrite)


def test_the_concatenation_of_shards_is_all_lines():
    for lines in (0, 1, 7, 100):
        for parts in (1, 2, 3, 8, 130):
            numbers = [
                line for part in range(1, parts + 1) for line in shard_lines(lines, part, parts)
            ]
            assert numbers == list(range(lines))
            sizes = {len(shard_lines(lines, part, parts)) for part in range(1, parts + 1)}
            assert max(sizes) - min(sizes) <= 1


def test_a_shard_is_part_slash_parts():
    assert shard_of("2/8") == (2, 8)
    for wrong in ("0/8", "9/8", "2", "2/", "/8", "a/b", "-1/8", "1/0"):
        with pytest.raises(UserError, match="PART/PARTS") as caught:
            shard_of(wrong)
        assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize("killed_at", [0, 6, 7, 13, 21, 30])
def test_results_before_a_kill_are_not_computed_again(tmp_path, killed_at):
    output, reused = tmp_path / "out.txt", []
    first, second = Worker(killed_at), Worker()
    with pytest.raises(Killed):
        job(output).run(source(), first)
    assert not output.exists()
    assert first.seen == list(range(killed_at // 3 * 3))
    job(output).run(source(), second, reused.append)
    assert first.seen + second.seen == list(range(31))
    assert sum(reused) == len(first.seen)
    assert output.read_bytes() == WHOLE
    assert os.listdir(tmp_path) == ["out.txt"]


def test_even_a_few_results_are_on_disk_after_thirty_seconds_of_work(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(resumable_output.time, "monotonic", lambda: clock.now)

    def work(lines):
        for count, (number, item) in enumerate(lines):
            saved = sum(
                path.read_text().count("\n") for path in (tmp_path / "out.txt.parts").glob("0*")
            )
            assert saved >= count - 1 - 30 // 8
            clock.now += 8.0
            yield {number: item.line.upper()}

    job(tmp_path / "out.txt").run(source(), work)
    assert (tmp_path / "out.txt").read_bytes() == WHOLE


def test_of_the_saved_lines_only_a_corrected_one_is_computed_again(tmp_path):
    output, resumed = tmp_path / "out.txt", Worker()
    with pytest.raises(Killed):
        job(output).run(source(), Worker(killed_at=27))
    corrected = [*LINES[:5], "corrected", *LINES[6:]]
    job(output).run(source(corrected), resumed)
    assert resumed.seen == [5, 27, 28, 29, 30]
    assert output.read_text() == "".join(f"{line.upper()}\n" for line in corrected)


def test_results_of_lines_that_were_passed_are_not_kept_in_memory(tmp_path):
    """Such as those of other processes, whose lines are not looked up."""
    output = job(tmp_path / "out.txt")
    with pytest.raises(Killed):
        output.run(source(), Worker(killed_at=27))
    keys = [hash_of(Item(line, line)) for line in LINES]
    find = output._finder()
    assert (find(0, keys[0]), find(26, keys[26])) == ("LINE 0", "LINE 26")
    assert find(1, keys[1]) is None
    every = output._finder()
    assert [every(number, keys[number]) for number in range(27)] == WHOLE.decode().split("\n")[:27]


def test_the_hash_of_an_item_includes_its_target_and_prefix():
    """A line whose target has changed is scored again."""
    assert hash_of(Item("a", "a", prefix="b")) != hash_of(Item("a", "a", target="b"))
    assert hash_of(Item("a", "a", prefix="b")) != hash_of(Item("a", "a", prefix="c"))
    assert hash_of(Item("a", "a", target="b")) != hash_of(Item("a", "a", target="c"))
    assert hash_of(Item("a", "ab", target="c")) != hash_of(Item("a", "a", target="bc"))
    both = Item("a", "a", prefix="b", source_prefix="c")
    assert hash_of(both) != hash_of(Item("a", "a", prefix="bc"))
    assert hash_of(Item("a", "a", source_prefix="")) != hash_of(Item("a", "a"))


def test_results_that_cannot_be_deleted_do_not_fail_a_complete_job(tmp_path, monkeypatch, capsys):
    output = tmp_path / "out.txt"

    def published():
        assert output.read_bytes() == WHOLE and Path(f"{output}.parts").is_dir()
        monkeypatch.setattr(results_folder, "delete_directory", fail)

    def fail(_):
        raise OSError("read-only")

    job(output).run(source(), Worker(), published=published)
    assert capsys.readouterr().err == (
        f"warning: the saved results in {output}.parts are not deleted: read-only\n"
    )


def test_an_input_that_changes_while_the_job_runs_is_refused(tmp_path):
    output, reads = tmp_path / "out.txt", iter([LINES, ["changed", *LINES[1:]], LINES])
    with pytest.raises(UserError, match="line 1 of the input has changed") as caught:
        job(output).run(lambda: source(next(reads))(), Worker())
    assert caught.value.code == DATA and not output.exists()


def test_results_of_another_command_are_not_used(tmp_path):
    output, worker = tmp_path / "out.txt", Worker()
    with pytest.raises(Killed):
        job(output, "other").run(source(), Worker(16))
    job(output).run(source(), worker)
    assert worker.seen == list(range(31))
    assert output.read_bytes() == WHOLE


@pytest.mark.parametrize("content", [b"", b'[0, "HALF A LI', b"[1]\n", b"\xff\n"])
def test_a_damaged_file_of_results_is_computed_again(tmp_path, content):
    output, worker = tmp_path / "out.txt", Worker()
    with pytest.raises(Killed):
        job(output).run(source(), Worker(16))
    parts = tmp_path / "out.txt.parts"
    first = min(path for path in parts.iterdir() if path.name[0] == "0")
    first.write_bytes(content)
    (parts / "000000000020-ab.0123456789ab.seq2seq-tmp").write_bytes(
        content
    )  # left by a kill during a write
    job(output).run(source(), worker)
    assert 0 in worker.seen
    assert output.read_bytes() == WHOLE


def kill_at(monkeypatch, operation, survived):
    """Raise Killed in call number `survived` + 1 of a function of results_folder."""
    real = operator.attrgetter(operation)(results_folder)
    calls = itertools.count()

    def dying(*arguments, **options):
        if next(calls) >= survived:
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(f"{results_folder.__name__}.{operation}", dying)


@pytest.mark.parametrize("operation", ["os.mkdir", "os.rename", "write_atomic", "os.rmdir"])
def test_a_job_resumes_after_a_kill_while_its_directory_is_created_or_removed(
    tmp_path, monkeypatch, operation
):
    output = tmp_path / "out.txt"
    with pytest.raises(Killed):
        job(output, "other").run(source(["x"] * 31), Worker(16))
    for survived in range(4):
        with monkeypatch.context() as patch:
            kill_at(patch, operation, survived)
            with contextlib.suppress(Killed):
                job(output, f"same {survived}").run(source(), Worker())
    job(output).run(source(), Worker())
    assert output.read_bytes() == WHOLE


@pytest.mark.parametrize("fingerprint", [False, True])
def test_a_directory_with_a_file_of_a_user_is_not_changed(tmp_path, fingerprint):
    (tmp_path / "out.txt.parts").mkdir()
    (tmp_path / "out.txt.parts" / "mine").write_text("mine")
    if fingerprint:
        (tmp_path / "out.txt.parts" / "fingerprint").write_text("other")
    with pytest.raises(
        UserError, match="is not a directory of a decoding job.* got mine"
    ) as caught:
        job(tmp_path / "out.txt")
    assert caught.value.code == OUTPUT
    assert (tmp_path / "out.txt.parts" / "mine").read_text() == "mine"
    (tmp_path / "out.txt.parts").rename(tmp_path / "elsewhere")
    (tmp_path / "out.txt.parts").symlink_to("elsewhere")
    with pytest.raises(UserError, match="is not a directory of a decoding job"):
        job(tmp_path / "out.txt")


@pytest.mark.parametrize("content", [b"", b"\xff\x00", "½".encode()])
def test_a_damaged_fingerprint_is_that_of_another_job(tmp_path, capsys, content):
    output, worker = tmp_path / "out.txt", Worker()
    with pytest.raises(Killed):
        job(output).run(source(), Worker(16))
    (tmp_path / "out.txt.parts" / "fingerprint").write_bytes(content)
    assert capsys.readouterr().err == ""
    job(output).run(source(), worker)
    assert worker.seen == list(range(31)) and output.read_bytes() == WHOLE
    assert f"saved results in {tmp_path}/out.txt.parts are deleted" in capsys.readouterr().err


def test_an_output_that_another_program_creates_is_kept_with_the_saved_results(tmp_path):
    output, resumed = tmp_path / "out.txt", Worker()

    def work(lines):
        yield from Worker()(lines)
        output.write_text("other")

    with pytest.raises(UserError, match="was created by another program"):
        job(output, overwrite=False).run(source(), work)
    assert output.read_text() == "other"
    job(output).run(source(), resumed)
    assert resumed.seen == [] and output.read_bytes() == WHOLE


def test_an_output_named_gz_is_compressed_to_the_same_bytes_each_time(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        job(tmp_path / name / "out.gz").run(source(), Worker())
    first, second = ((tmp_path / name / "out.gz").read_bytes() for name in ("a", "b"))
    assert gzip.decompress(first) == WHOLE
    assert first == second


@pytest.fixture
def run(tmp_path):
    """A run directory whose best checkpoint is the average."""
    path = tmp_path / "run"
    files = {
        "best.json": json.dumps({"checkpoint": "average"}),
        "config.json": "{}",
        "average/params/weights": "1",
        "train.log": "",
        "run.json": "{}",
        "checkpoints/7/params/weights": "2",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def fingerprint_of(
    run,
    *facts,
    kinds=("bpe", "bpe"),
    vocabularies=(b"pieces", b"pieces"),
    checkpoint="best",
    weights=None,
    automatic=32,
    **options,
):
    source, target = (
        SimpleNamespace(kind=kind, serialized=lambda content=content: content)
        for kind, content in zip(kinds, vocabularies, strict=True)
    )
    translator = SimpleNamespace(
        decoding=DecodingConfig(**options),
        source_tokenizer=source,
        target_tokenizer=target,
        weights=weights,
        engine=SimpleNamespace(
            sizes=SimpleNamespace(batch_size=options.get("batch_size") or automatic)
        ),
    )
    return job_fingerprint(translator, members_of(run, checkpoint), facts)


def test_a_fingerprint_depends_on_the_files_that_determine_translations_only(run):
    for name, matters in (
        ("config.json", True),
        ("average/params/weights", True),
        ("train.log", False),
        ("run.json", False),
        ("scores.json", False),
        (".objects.json", False),  # versions of downloaded files
        ("checkpoints/7/params/weights", False),
    ):
        before = fingerprint_of(run)
        (run / name).write_text("changed")
        assert (fingerprint_of(run) != before) == matters, name
    before = fingerprint_of(run, checkpoint="average")
    (run / "best.json").write_text('{"checkpoint": 7}')
    assert fingerprint_of(run, checkpoint="average") == before


def test_a_fingerprint_depends_on_options_versions_and_device(run, monkeypatch):
    fingerprints = {
        fingerprint_of(run),
        fingerprint_of(run, beam_size=5),
        fingerprint_of(run, "score"),
        fingerprint_of(run, "score", "jsonl"),
        fingerprint_of(run, kinds=("pieces of bpe", "bpe")),
        fingerprint_of(run, kinds=("bpe", "pieces of bpe")),
        fingerprint_of(run, vocabularies=(b"other", b"pieces")),
        fingerprint_of(run, vocabularies=(b"pieces", b"other")),
        *(
            fingerprint_of(run, checkpoint=checkpoint)
            for checkpoint in ("7", "7,average", "average,7")
        ),
        *(fingerprint_of(run, weights=weights) for weights in ((0.7, 0.3), (0.3, 0.7))),
    }
    real = resumable_output.jax.local_devices()[0]
    device = SimpleNamespace(platform=real.platform, device_kind=real.device_kind)
    for place, name, value in (
        (device, "platform", "other"),
        (device, "device_kind", "other"),
        (resumable_output, "__version__", "other"),
        (resumable_output, "version", lambda name: "other"),
        (resumable_output.platform, "machine", lambda: "other"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(resumable_output.jax, "local_devices", lambda: [device])
            patch.setattr(place, name, value)
            fingerprints.add(fingerprint_of(run))
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + f" {DETERMINISTIC}")
        fingerprints.add(fingerprint_of(run))
    assert len(fingerprints) == 19
    assert fingerprint_of(run) in fingerprints


def test_a_fingerprint_depends_on_the_batch_size_that_is_compiled(run):
    assert fingerprint_of(run) == fingerprint_of(run, batch_size=32)
    assert len({fingerprint_of(run, automatic=size) for size in (32, 64)}) == 2
    assert fingerprint_of(run, automatic=64) == fingerprint_of(run, batch_size=64)


def test_the_version_equals_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert __version__ == project["project"]["version"]
