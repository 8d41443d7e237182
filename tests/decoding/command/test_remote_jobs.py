"""Decoding jobs with URLs: saved results in the storage, which another machine continues."""

import contextlib
import gzip

import pytest

import seq2seq.decode
from seq2seq.decoding.command import job as job_module
from seq2seq.decoding.command import resumable_output
from seq2seq.decoding.command.formats import FORMATS
from seq2seq.decoding.command.inputs import Input, check_input
from seq2seq.decoding.command.results_folder import MARK, results_folder
from seq2seq.files.locks import locked_output
from seq2seq.runtime.errors import CONFIGURATION, DATA, OUTPUT, UserError
from tests.decoding.command.test_resumable_output import LINES, WHOLE, Killed, Worker, job, source
from tests.support.in_process import call_in_process
from tests.support.tiny import write_run

OUTPUT_URL = "memory://bucket/out.txt"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Results are saved after each group of three lines."""
    monkeypatch.setattr(resumable_output, "SAVE_INTERVAL", -1.0)


def parts(storage):
    return [name for name in storage.names() if name.startswith("out.txt.parts/")]


@pytest.mark.parametrize("killed_at", [0, 7, 21, 30])
def test_another_machine_continues_from_the_saved_results(storage, killed_at):
    first, second, reused = Worker(killed_at), Worker(), []
    with pytest.raises(Killed):
        job(OUTPUT_URL).run(source(), first)
    assert set(parts(storage)) == set(storage.names()) and f"out.txt.parts/{MARK}" in parts(storage)
    assert len(parts(storage)) == 1 + len(first.seen) // 3
    resumed = job(OUTPUT_URL)
    assert resumed.count_saved() == len(first.seen)
    resumed.run(source(), second, reused.append)
    assert first.seen + second.seen == list(range(31)) and sum(reused) == len(first.seen)
    assert storage["out.txt"] == WHOLE and storage.names() == ["out.txt"]


def test_results_are_saved_in_larger_objects_than_chunks(storage, monkeypatch):
    """An object for each chunk would be a request for each compiled call."""
    monkeypatch.setattr(resumable_output, "SAVE_INTERVAL", 1000.0)
    with pytest.raises(Killed):
        job(OUTPUT_URL).run(source(), Worker(21))
    assert len(parts(storage)) == 2  # what was computed before the kill, and the fingerprint


def test_the_output_of_another_command_is_computed_from_the_start(storage):
    worker = Worker()
    with pytest.raises(Killed):
        job(OUTPUT_URL, "other").run(source(), Worker(16))
    job(OUTPUT_URL).run(source(), worker)
    assert worker.seen == list(range(31)) and storage["out.txt"] == WHOLE


@pytest.mark.parametrize("content", [b"", b'[0, "HALF A LI', b"[1]\n", b"\xff\n"])
def test_a_damaged_object_of_results_is_computed_again(storage, content):
    worker = Worker()
    with pytest.raises(Killed):
        job(OUTPUT_URL).run(source(), Worker(16))
    storage[parts(storage)[0]] = content
    job(OUTPUT_URL).run(source(), worker)
    assert worker.seen[:3] == [0, 1, 2] and storage["out.txt"] == WHOLE


@pytest.mark.parametrize(
    ("names", "got"),
    [
        (["mine"], "mine"),
        (["below/mine", MARK], "below/mine"),
        (["000000000000-0123456789ab"], "no fingerprint"),
    ],
)
def test_objects_of_a_user_are_not_changed(storage, names, got):
    for name in names:
        storage[f"out.txt.parts/{name}"] = b"mine"
    message = f"{OUTPUT_URL}.parts is not a directory of a decoding job.* got {got};"
    with pytest.raises(UserError, match=message) as refused:
        job(OUTPUT_URL)
    assert refused.value.code == OUTPUT
    assert len(parts(storage)) == len(names)
    assert all(storage[name] == b"mine" for name in parts(storage))


def test_objects_beside_the_folder_do_not_belong_to_it(storage):
    for name in ("out.txt.parts2/a", "out.txt.parts", "out.txt.part"):
        storage[name] = b"mine"
    folder = results_folder(OUTPUT_URL)
    assert not folder.exists() and folder.names() == []


@pytest.mark.parametrize("after", [0, 1, 4, 5, 6])
def test_a_job_resumes_after_a_kill_while_its_folder_is_deleted(
    storage, failing, monkeypatch, after
):
    """The fingerprint is deleted last, so a partly deleted folder still belongs to its job."""
    with pytest.raises(Killed):
        job(OUTPUT_URL, "other").run(source(), Worker(16))
    assert len(parts(storage)) == 6
    failing("rm_file", after, Killed())
    with contextlib.suppress(Killed):
        job(OUTPUT_URL)
    assert len(parts(storage)) == max(1, 6 - after)
    assert storage[f"out.txt.parts/{MARK}"] == (b"other" if after < 6 else b"same")
    monkeypatch.undo()  # nothing is killed again
    worker = Worker()
    job(OUTPUT_URL).run(source(), worker)
    assert worker.seen == list(range(31)) and storage["out.txt"] == WHOLE


def test_an_output_that_another_program_creates_is_kept_with_the_saved_results(storage):
    resumed = Worker()

    def work(lines):
        yield from Worker()(lines)
        storage["out.txt"] = b"other"

    with pytest.raises(UserError, match="was created by another program"):
        job(OUTPUT_URL, overwrite=False).run(source(), work)
    assert storage["out.txt"] == b"other"
    job(OUTPUT_URL).run(source(), resumed)
    assert resumed.seen == [] and storage["out.txt"] == WHOLE


@pytest.mark.parametrize("after", [1, 2, 5, 12])
def test_a_job_whose_storage_fails_resumes(storage, failing, monkeypatch, after):
    """With 12 writes before the failure it is the upload of the output that fails."""
    worker = Worker()
    failing("pipe_file", after)
    message = "cannot be accessed: ConnectionError: the network is down.*run the same command"
    with pytest.raises(UserError, match=message) as refused:
        job(OUTPUT_URL).run(source(), Worker())
    monkeypatch.undo()  # the storage works again
    assert refused.value.code == OUTPUT and "out.txt" not in storage.names()
    job(OUTPUT_URL).run(source(), worker)
    assert worker.seen == list(range(31))[3 * (after - 1) :] and storage["out.txt"] == WHOLE


def lost():
    raise UserError(OUTPUT, "the lock was taken over")


def test_a_job_whose_lock_was_taken_over_saves_nothing(storage):
    taken = resumable_output.ResumableOutput(OUTPUT_URL, "same", 7, True, lost)
    with pytest.raises(UserError, match="taken over"):
        taken.run(source(), Worker())
    assert storage.names() == [f"out.txt.parts/{MARK}"]
    job(OUTPUT_URL).run(source(), Worker())
    storage[f"out.txt.parts/{MARK}"] = b"same"
    with pytest.raises(UserError, match="taken over"):
        taken.run(source([]), Worker())
    assert storage["out.txt"] == WHOLE


def test_an_input_of_objects_can_be_read_again_and_must_exist(storage):
    storage["in.gz"] = gzip.compress("".join(f"{line}\n" for line in LINES).encode())
    url = "memory://bucket/in.gz"
    check_input(url)
    job_input = Input(url, url, FORMATS["text"], True)
    assert job_input.rereadable and job_input.count() == len(LINES)
    items = list(job_input.items(range(3, 5)))
    assert [(n, item.line, item.target) for n, item in items] == [
        (3, "line 3", "line 3"), (4, "line 4", "line 4"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="memory://bucket/none does not exist") as refused:
        check_input("memory://bucket/none")
    assert refused.value.code == DATA


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("remote") / "run"
    write_run(path)
    return path


def test_a_command_reads_and_writes_objects(run, storage, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("eins zwei\n\ndrei\n", encoding="utf-8")
    storage["in.txt"] = (tmp_path / "in.txt").read_bytes()

    def decode(*flags):
        return call_in_process(
            seq2seq.decode, f"--workdir={run}", "--compilation_cache=off", *flags
        )

    here = decode(f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}")
    there = decode("--input=memory://bucket/in.txt", f"--output={OUTPUT_URL}")
    assert here.code == there.code == 0, there.err
    assert storage["out.txt"] == (tmp_path / "out.txt").read_bytes()
    assert storage.names() == ["in.txt", "out.txt"]
    again = decode("--input=memory://bucket/in.txt", f"--output={OUTPUT_URL}")
    assert again.code == OUTPUT and again.err == [
        f"error: {OUTPUT_URL} exists; set --overwrite to replace it"
    ]
    storage["lines"] = b"a\nb\n"
    flags = "--input=memory://bucket/in.txt", "--output=memory://bucket/scored"
    for name in ("reference", "target"):
        mode = ["--mode=score"] * (name == "target")
        wrong = decode(*flags, *mode, f"--{name}=memory://bucket/lines")
        assert wrong.code == DATA and "parallel" in wrong.err[-1], wrong.err
    scored = decode(
        *flags, f"--reference={OUTPUT_URL}", f"--baseline={OUTPUT_URL}", "--metric=bleu"
    )
    assert scored.code == 0 and storage["scored"] == storage["out.txt"], scored.err
    with locked_output(OUTPUT_URL):
        locked = decode(flags[0], f"--output={OUTPUT_URL}", "--overwrite")
        assert locked.code == OUTPUT and "is being written by another job" in locked.err[-1]
    monkeypatch.setattr(job_module, "locked_output", lambda *_: contextlib.nullcontext(lost))
    taken = decode(flags[0], f"--output={OUTPUT_URL}", "--overwrite")
    assert taken.code == OUTPUT and taken.err[-1] == "error: the lock was taken over"
    same = decode(flags[0], "--output=memory://bucket/in.txt", "--overwrite")
    assert same.code == OUTPUT and "would replace the input file" in same.err[-1]


@pytest.mark.parametrize("flag", ["input", "output", "target", "reference", "baseline"])
def test_a_url_with_a_secret_is_refused(flag, monkeypatch):
    monkeypatch.setenv("SIGNED", "s3://bucket/a?signature=secret")
    for value in ("gs://me:secret@bucket/a", "$SIGNED"):
        refused = call_in_process(seq2seq.decode, "--workdir=none", f"--{flag}={value}")
        assert refused.code == CONFIGURATION and "secret" not in "".join(refused.err)
        assert refused.err[-1].startswith(f"error: --{flag} has a user name, a query")
