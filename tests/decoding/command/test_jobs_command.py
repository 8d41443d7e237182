"""decode.py: formats, shards, scoring, kills and signals of a process, and invalid input."""

import gzip
import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

import seq2seq.decode
from seq2seq.cli.command import exit_at_once
from seq2seq.data.metrics import bleu, ter
from seq2seq.decoding.command.formats import FORMATS
from seq2seq.decoding.command.inputs import Input
from seq2seq.files.lines import LONGEST
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.signals import Stopped
from tests.support.forked import Process, call_forked
from tests.support.in_process import call_in_process
from tests.support.tiny import WORDS, write_run

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "NPROC": "16", "XLA_FLAGS": os.environ["TESTS_XLA_FLAGS"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with random parameters, and 13 lines in in.txt, of which two are blank."""
    path = tmp_path_factory.mktemp("jobs")
    write_run(path / "run")
    choose = random.Random(0)
    lines = [" ".join(choose.choices(WORDS, k=choose.randint(1, 9))) for _ in range(13)]
    lines[3], lines[7] = "", "  "
    (path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path, lines


def command(path, *flags):
    """decode.py and its flags."""
    return [ROOT / "decode.py", f"--workdir={path / 'run'}", *flags]


def decode(path, *flags, **options):
    """(exit code, stdout, lines of stderr) of decode.py in this process."""
    return call_in_process(seq2seq.decode, f"--workdir={path / 'run'}", *flags, **options)[:3]


def decode_as_process(path, *flags, stdin=b""):
    return call_forked(command(path, *flags), stdin, environment={"XLA_FLAGS": ""})[:3]


@pytest.fixture(scope="module")
def whole(run):
    """The output of in.txt."""
    path, _ = run
    code, out, _ = decode(path, f"--input={path / 'in.txt'}")
    assert code == 0
    return out


def test_json_keeps_its_fields_and_can_be_scored(run):
    path, lines = run
    fields = [{"id": i, "text": line} for i, line in enumerate(lines)]
    text = "".join(json.dumps(entry) + "\n" for entry in fields)
    flags = ("--format=jsonl", "--suppress=<pad> <s> <unk>")
    search = "--beam_size=3", "--nbest=2", "--annotate"
    code, out, _ = decode(path, *flags, *search, stdin=text.encode())
    outputs = [json.loads(line) for line in out.split("\n")[:-1]]
    assert code == 0
    assert [{"id": output["id"], "text": output["text"]} for output in outputs] == fields
    assert all(len(output["nbest"]) == (2 if output["text"].strip() else 1) for output in outputs)
    assert all(output["nbest"][0]["score"] == output["score"] for output in outputs)
    code, scores, _ = decode(path, *flags, "--mode=score", stdin=out.encode())
    assert code == 0
    for output, line in zip(outputs, scores.split("\n")[:-1], strict=True):
        again = json.loads(line)
        assert again["id"] == output["id"]
        if output["text"].strip():
            assert again["score"] == pytest.approx(output["score"], abs=1e-4)
            assert again["log_probs"] == output["log_probs"]
            assert sum(again["log_probs"]) == pytest.approx(again["log_prob"], abs=1e-4)
    code, links, _ = decode(path, "--format=jsonl", "--mode=align", stdin=out.encode())
    assert code == 0
    aligned = [json.loads(line).get("alignment", []) for line in links.split("\n")[:-1]]
    assert [len(links) for links in aligned] == [
        len(output["translation"].split()) for output in outputs
    ]
    assert aligned == [output.get("alignment", []) for output in outputs]


@pytest.mark.slow
def test_joined_shards_and_a_compressed_output_equal_the_whole(run):
    path, lines = run
    source = f"--input={path / 'in.txt'}"
    for form in ("text", "moses"):
        code, whole, _ = decode(path, source, f"--format={form}", "--nbest=1")
        assert code == 0 and whole.count("\n") == len(lines)
        parts = ""
        for part in (1, 2):
            code, out, err = decode(path, source, f"--format={form}", f"--shard={part}/2")
            assert code == 0 and err[-1].startswith(f"{(6, 7)[part - 1]} lines, 1 blank")
            parts += out
        assert parts == whole
    with gzip.open(path / "in.gz", "wt", encoding="utf-8") as file:
        file.write((path / "in.txt").read_text(encoding="utf-8"))
    code, out, _ = decode(
        path, f"--input={path / 'in.gz'}", f"--output={path / 'out.gz'}", "--format=moses"
    )
    assert (code, out) == (0, "")
    assert gzip.decompress((path / "out.gz").read_bytes()).decode() == whole


@pytest.mark.slow
def test_annotations_do_not_depend_on_devices_or_shards(run, tmp_path):
    path, lines = run
    flags = f"--input={path / 'in.txt'}", "--format=text:jsonl", "--annotate", "--nbest=2"
    flags += "--suppress=<pad> <s> <unk>", "--min_length=3"
    call = command(path, *flags)
    outs = [call_forked(call, devices=devices).out for devices in (1, 4)]
    assert outs[0] == outs[1]
    objects = [json.loads(line) for line in outs[0].splitlines()]
    assert [output["text"] for output in objects] == lines
    assert [len(output.get("log_probs", [])) > 2 for output in objects] == [
        bool(x.strip()) for x in lines
    ]
    parts = ""
    for part in (1, 2):
        out = tmp_path / f"{part}.jsonl"
        assert decode(path, *flags, f"--shard={part}/2", f"--output={out}")[0] == 0
        parts += out.read_text(encoding="utf-8")
    assert parts == outs[0]


def job_with_saved_results(path, output, *flags):
    """A running job that has saved the results of some lines."""
    process = Process(command(path, *flags, f"--output={output}"), ENVIRONMENT)
    while process.poll() is None and not [*Path(f"{output}.parts").glob("0*[!p]")]:
        time.sleep(0.01)
    assert process.poll() is None
    return process


@pytest.mark.slow
def test_a_killed_job_resumes_and_its_output_is_byte_identical(run, tmp_path):
    """A line is corrected before the job resumes; another job is refused while the first runs. The
    lines repeat, so their outputs are those of a job without interruption."""
    (path, lines), long = run, tmp_path / "long.txt"
    repeated = lines * 1000
    long.write_text("".join(f"{line}\n" for line in repeated))
    options = ("--beam_size=1", "--max_extra_length=2")
    flags, killed = (f"--input={long}", *options), tmp_path / "killed.txt"
    parts = tmp_path / "killed.txt.parts"
    process = job_with_saved_results(path, killed, *flags)
    process.send_signal(signal.SIGSTOP)
    code, _, err = decode_as_process(path, *flags, f"--output={killed}")
    assert code == 6 and f"(process {process.pid} on " in err[-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not killed.exists()
    texts = [file.read_text() for file in parts.glob("0*[!p]")]
    saved = [json.loads(row)[0] for text in texts for row in text.splitlines()]
    repeated[saved[0]] = "elf zehn"
    long.write_text("".join(f"{line}\n" for line in repeated))
    code, _, err = decode_as_process(path, *flags, f"--output={killed}")
    assert code == 0
    assert any(line.startswith(f"{len(saved):,} lines are saved by an earlier run") for line in err)
    assert f"({len(saved) - 1} more reused from an earlier run)" in err[-1]
    few = "".join(f"{line}\n" for line in ["elf zehn", *lines]).encode()
    code, once, _ = decode_as_process(path, *options, stdin=few)
    corrected, *other_lines = once.splitlines(keepends=True)
    assert code == 0 and len({*other_lines}) > 5 and len(other_lines) == 13
    expected = other_lines * 1000
    expected[saved[0]] = corrected
    assert killed.read_text(encoding="utf-8") == "".join(expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["killed.txt", "long.txt"]


@pytest.mark.parametrize("resumable", [True, False])
def test_a_stopped_job_that_saves_its_results_says_how_to_resume(
    run, tmp_path, monkeypatch, resumable
):
    path, flags_of_signals = run[0], []

    def stop(job, stop_flag):
        flags_of_signals.append(stop_flag)
        raise Stopped(signal.SIGINT)

    def end(code):
        raise SystemError(f"exit {code}")

    monkeypatch.setattr(seq2seq.decode, "decode", stop)
    monkeypatch.setattr(os, "_exit", end)
    output = f"--output={tmp_path / 'out'}" if resumable else "--output=-"
    flags = f"--workdir={path / 'run'}", f"--input={path / 'in.txt'}", output
    err = call_in_process(seq2seq.decode, *flags).err
    advice = "; run the same command to resume" if resumable else ""
    assert err[0] == f"error: stopped by SIGINT{advice}" and "exit 130" in err[1]
    flags_of_signals[0].set(signal.SIGTERM)  # during the exit: ignored


def test_the_command_does_not_wait_for_its_calls_after_an_error(monkeypatch):
    """tests/cli/test_command.py tests what `exit_at_once` does."""
    options = {}
    monkeypatch.setattr(
        seq2seq.decode, "run_command", lambda *_, **arguments: options.update(arguments)
    )
    seq2seq.decode.run()
    assert options["leave"] is exit_at_once


def test_a_coprocess_gets_each_line_at_once_and_ends_at_the_first_signal(run, whole, tmp_path):
    path, lines = run
    pipes = [tmp_path / name for name in ("stdin", "stdout", "stderr")]
    for pipe in pipes:
        os.mkfifo(pipe)
    process = Process(command(path), ENVIRONMENT, pipes)
    # In the order in which the command opens them.
    with (
        open(pipes[0], "wb", buffering=0) as stdin,
        open(pipes[1]) as stdout,
        open(pipes[2]) as stderr,
    ):
        for line, expected in zip(lines[:5], whole.split("\n"), strict=False):
            stdin.write(f"{line}\n".encode())
            assert stdout.readline() == f"{expected}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 128 + signal.SIGINT
        err = stderr.read().splitlines()
    assert err[-1] == "error: stopped by SIGINT"
    assert not any("Tr" in line for line in err)


def test_a_malformed_line_is_refused_before_any_device_is_used(run, tmp_path):
    path, _ = run
    good = json.dumps({"text": "eins"}) + "\n"
    (tmp_path / "in.jsonl").write_text(good * 9_999 + '{"text": "eins"\n' + good)
    (tmp_path / "target").write_text("eins\n" * 9_999)
    flags = f"--input={tmp_path / 'in.jsonl'}", f"--output={tmp_path / 'out'}"
    for more, part in (
        (("--format=jsonl",), "in.jsonl:10000: not JSON"),
        ((f"--target={tmp_path / 'target'}", "--mode=score"), "target ends after line 9999"),
    ):
        code, _, err = decode(path, *flags, *more, devices=False)
        assert code == 3 and len(err) == 1 and part in err[0]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.jsonl", "target"]


@pytest.mark.parametrize(
    "flags, part",
    [
        (("--mode=score",), "give --target=FILE, or an input"),
        (("--nbest=2",), "--format=text does not support several translations of a line"),
        (("--nbest=2", "--format=tsv"), "give --format=tsv:jsonl or --format=tsv:moses"),
        (("--nbest=2", "--format=text:tsv"), "--format=text:tsv does not support several"),
        (
            ("--annotate",),
            "--annotate is not supported with --format=text; give --format=text:js",
        ),
        (("--annotate", "--format=jsonl", "--mode=score"), "--annotate has no effect on --mode=sc"),
        (("--format=moses:text",), "give --format=text:text or --format=tsv:text or --format=js"),
        (
            ("--format=csv",),
            "--format=csv is unknown: expected FORMAT or INPUT:OUTPUT",
        ),
        (
            ("--mode=align", "--target={d}/in.txt", "--format=text:moses"),
            "give --format=text:text or",
        ),
        (("--mode=score", "--format=text:jsonl"), "and --format=tsv:jsonl or --format=jsonl:jsonl"),
        (
            ("--mode=score", "--target={d}/in.txt", "--format=moses"),
            "mode=score; give --format=text:t",
        ),
        (
            ("--mode=score", "--target={d}/in.txt", "--reference={d}/in.txt"),
            "--reference has no effect on --mode=score",
        ),
        (("--mode=score", "--target={d}/in.txt", "--prefix=x"), "--prefix has no effect on --mode"),
        (("--shard=3/2", "--input={d}/in.txt"), "PART/PARTS"),
        (("--shard=1/2",), "--input file"),
        (("--compile_for=h100", "--mode=align"), "of a search, got --mode=align; remove one"),
        (("--target={d}/in.txt",), "--target has no effect on a beam search"),
        (("--baseline={d}/in.txt",), "--baseline has no effect without --reference"),
        (("--metric=bleu,x", "--reference={d}/in.txt"), "--metric: unknown metric 'x': expected"),
        (("--suppress=nowhere",), "other than the end token, got 'nowhere'; remove it"),
        (("--temperature=0",), "above 0"),
        (("--top_p=90",), "at most 1"),
        (("--min_length=10000000000",), "below 2^31"),
        (
            ("--top_k=4", "--seed=1"),
            "--top_k, --seed has no effect on a beam search: expected options of a beam search, "
            "got options of sampling (--samples=N); remove them, or change the mode",
        ),
        (
            ("--mode=score", "--target={d}/in.txt", "--nbest=2", "--alpha=1", "--min_length=3"),
            "--nbest, --min_length has no effect on --mode=score",
        ),
    ],
    ids=str,
)
def test_an_unsupported_combination_of_flags_is_one_line(run, flags, part):
    path, _ = run
    code, out, err = decode(path, *(flag.format(d=path) for flag in flags), stdin=b"eins\n")
    assert (code, out) == (2, "")
    assert len(err) == 1 and part in err[0], err


def test_two_files_are_scored_line_by_line_and_must_be_parallel(run, tmp_path):
    path, lines = run
    (tmp_path / "target").write_text("".join(f"{line.upper()}\n" for line in lines))
    flags = (f"--input={path / 'in.txt'}", f"--target={tmp_path / 'target'}", "--mode=score")
    code, out, _ = decode(path, *flags)
    assert code == 0
    numbers = out.split("\n")[:-1]
    assert len(numbers) == len(lines)
    assert all(
        (float(x) < 0) if line.strip() else x == "" for x, line in zip(numbers, lines, strict=True)
    )
    (tmp_path / "target").write_text("EINS\n")
    swapped = (f"--input={tmp_path / 'target'}", f"--target={path / 'in.txt'}", "--mode=score")
    for arguments in (flags, swapped):
        code, _, err = decode(path, *arguments)
        assert code == 3
        assert err[-1] == (
            f"error: {tmp_path / 'target'} ends after line 1: expected as many lines as in "
            f"{path / 'in.txt'}; the two files must be parallel"
        )


def test_an_input_that_becomes_shorter_during_a_job_is_refused(tmp_path):
    path = tmp_path / "in.txt"
    read = Input(str(path), "", FORMATS["text"], scored=False)
    for count, lines in ((5, range(5)), (4, range(2, 4)), (0, range(0))):
        path.write_text("a\n" * count)
        assert [number for number, _ in read.items(lines)] == list(lines)
    path.write_text("a\n" * 3)
    for lines in (range(5), range(4, 5)):
        with pytest.raises(UserError, match="expected at least 5 lines, got 3") as caught:
            list(read.items(lines))
        assert caught.value.code == DATA


@pytest.mark.parametrize("character", ["a", "é", "犬", "🐕"])
def test_a_json_line_above_the_limit_is_refused_with_the_limit(tmp_path, character):
    path = tmp_path / "in.jsonl"
    read = Input(str(path), "", FORMATS["jsonl"], scored=False)
    fitting = (LONGEST - 12) // len(character.encode()) - 1
    for count, fits in ((fitting, True), (fitting + 2, False), (LONGEST, False)):
        path.write_text('{"text": "a"}\n{"text": "%s"}\n' % (character * count), encoding="utf-8")
        if fits:
            assert read.count() == 2
            continue
        with pytest.raises(UserError, match="in.jsonl:2: longer than 1,048,576 bytes") as caught:
            read.count()
        assert caught.value.code == DATA


def test_a_file_with_the_name_of_stdin_is_not_read(run, whole, tmp_path):
    """The file is in the working directory, and has another number of lines."""
    path, _ = run
    (tmp_path / "-").write_text("eins\n")
    content = (path / "in.txt").read_bytes()
    code, out, err = decode(path, "--input=-", stdin=content, cwd=tmp_path)
    assert (code, out) == (0, whole), err


def test_a_pipe_is_read_once_and_an_output_pipe_is_not_replaced(run, whole, tmp_path):
    path, _ = run
    content, out = (path / "in.txt").read_bytes(), tmp_path / "out.txt"
    for name in ("in", "out"):
        os.mkfifo(tmp_path / name)
    writer = Thread(target=(tmp_path / "in").write_bytes, args=(content,))
    writer.start()
    assert decode(path, f"--input={tmp_path / 'in'}", f"--output={out}")[0] == 0
    writer.join()
    assert out.read_text(encoding="utf-8") == whole
    with ThreadPoolExecutor(1) as reader:
        seen = reader.submit((tmp_path / "out").read_text, encoding="utf-8")
        code, _, err = decode(path, f"--input={path / 'in.txt'}", f"--output={tmp_path / 'out'}")
        assert code == 0, err
        assert seen.result() == whole
    assert (tmp_path / "out").is_fifo()


def test_an_output_named_gz_is_compressed_and_compared_with_a_baseline(run, tmp_path):
    """Scores are printed to stdout, or to stderr if the output is printed to stdout."""
    path, lines = run
    source, compared = (
        f"--input={path / 'in.txt'}",
        ("--metric=bleu,ter", f"--baseline={tmp_path}/b"),
    )
    (tmp_path / "b").write_text("".join(f"{line[:-1]}\n" for line in lines))
    flags = (f"--reference={path / 'in.txt'}", *compared)
    code, scores, _ = decode(path, source, *flags, f"--output={tmp_path / 'out.gz'}")
    assert code == 0
    code, whole, err = decode(path, source, *flags)
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()).decode() == whole
    texts, baseline = whole.split("\n")[:-1], [line[:-1] for line in lines]
    expected = "".join(f"{metric.compare(texts, baseline, lines)}\n" for metric in (bleu, ter))
    assert scores == expected and err[-8:] == expected.split("\n")[:-1]


@pytest.mark.parametrize("short", ["reference", "baseline"])
def test_references_and_a_baseline_that_are_not_parallel_are_refused_before_any_device_is_used(
    run, tmp_path, short
):
    path, lines = run
    for name in ("reference", "baseline"):
        (tmp_path / name).write_text("eins\n" * (len(lines) - 4 * (name == short)))
    flags = [f"--{name}={tmp_path / name}" for name in ("reference", "baseline")]
    flags += [f"--input={path / 'in.txt'}", f"--output={tmp_path / 'out'}"]
    if short == "reference":
        flags.pop(1)
    code, out, err = decode(path, *flags, devices=False)
    other_flag = "--input" if short == "reference" else "--reference"
    assert (code, out, len(err)) == (3, "", 1), err
    assert f"--{short} is not parallel to {other_flag}: expected 13 lines, got 9" in err[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", ["input", "target", "reference", "baseline"])
def test_an_input_file_is_never_replaced_by_the_output(run, tmp_path, flag):
    path, lines = run
    content = (path / "in.txt").read_bytes()
    (tmp_path / "in.txt").write_bytes(content)
    (tmp_path / "link").symlink_to("in.txt")
    flags = {"input": path / "in.txt", "output": tmp_path / "link", flag: tmp_path / "in.txt"}
    if flag == "target":
        flags["mode"] = "score"
    if flag in ("reference", "baseline"):
        references = [path / "in.txt", *([tmp_path / "in.txt"] if flag == "reference" else [])]
        flags["reference"] = ",".join(map(str, references))
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    code, out, err = decode(path, *arguments, "--overwrite")
    assert (code, out, len(err)) == (6, "", 1), err
    assert f"would replace the input file {tmp_path / 'in.txt'}; choose another --output" in err[0]
    assert (tmp_path / "in.txt").read_bytes() == content
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.txt", "link"]


@pytest.mark.parametrize(
    "flags, line, code, part",
    [
        (
            ("--format=jsonl",),
            {"text": "eins", "prefix": "zwei " * 40},
            3,
            "line 1: its prefix has 40",
        ),
        (("--alpha=4.5",), {}, 2, "decoding.alpha must be at most 4, got 4.5"),
        (("--output=",), {}, 6, "cannot write ''"),
        (("--output=/proc/x",), {}, 6, "cannot write /proc/x"),
        (("--input=",), {}, 3, "no such file: ''"),
        (("--input={d}",), {}, 3, " is a directory: expected a file"),
        (("--reference={d}/in.txt,{d}/damaged.gz",), {}, 3, "damaged.gz is damaged or cut off"),
    ],
    ids=str,
)
def test_an_error_in_the_input_is_reported_in_one_line(run, flags, line, code, part):
    path, _ = run
    (path / "damaged.gz").write_bytes(gzip.compress(b"eins\n" * 999)[:-9])
    flags = (flag.format(d=path) for flag in flags)
    got, _, err = decode(path, *flags, stdin=json.dumps(line).encode())
    assert got == code, err
    assert part in err[-1] and sum(line.startswith("error: ") for line in err) == 1
