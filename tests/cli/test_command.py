"""The entry point shared by all commands: remote paths, usable cores and the compilation cache."""

import os
import pwd
import subprocess
import sys
import warnings

import pytest

from seq2seq.cli.path_flags import PathParser
from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import read_corpus
from seq2seq.data.tokens.corpus_cache import corpus_cache
from seq2seq.files.remote import check_url
from seq2seq.runtime import paths
from seq2seq.runtime.devices import prepare_jax, shrink_cache, usable_cores
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, INTERNAL, UserError
from seq2seq.runtime.paths import check_local_path, working_copy
from seq2seq.scripts import convert
from tests.support.full_disk import largest_file
from tests.support.in_process import call_in_process
from tests.support.tiny import tiny_config
from tests.test_commands import ROOT, run


@pytest.mark.parametrize("path", ["gs://bucket/run", "s3://b/a", "file:///tmp/a", "hdfs://a:1/b"])
def test_a_remote_path_is_refused(path):
    with pytest.raises(UserError, match="--workdir is remote: expected a local path") as refused:
        check_local_path("--workdir", path)
    assert refused.value.code == CONFIGURATION and path in str(refused.value)


@pytest.mark.parametrize("path", ["", "runs/a", "/a/b", "~/a", "a:b", "C:/a", "-", "a//b"])
def test_a_local_path_is_accepted(path):
    check_local_path("--workdir", path)


@pytest.mark.parametrize(
    ("script", "argument"),
    [
        ("train.py", "--corpus_cache=gs://bucket/cache"),
        ("decode.py", "--compilation_cache=gs://bucket/cache"),
        ("scripts/checkpoints.py", "--workdir=gs://bucket/run"),
        ("scripts/convert.py", "--to=gs://bucket/run"),
    ],
)
def test_remote_paths_end_a_command_with_one_line_before_any_device(script, argument):
    code, out, err = run(ROOT / script, argument, devices=False)
    assert (code, out, len(err)) == (CONFIGURATION, "", 1)
    assert err[0].startswith(f"error: {argument.split('=')[0]} is remote: expected a local path")


def test_help_lists_the_path_flags_of_a_command():
    code, out, _ = run(ROOT / "train.py", "--help", devices=False)
    assert code == 0 and "--workdir" in out and "--compilation_cache" not in out


def test_a_remote_data_dir_and_vocabulary_are_refused():
    with pytest.raises(UserError, match="config.data.data_dir is remote"):
        read_corpus("builtin:korean_english", "train", DataConfig(data_dir="gs://bucket/data"))
    config = tiny_config("tsv:a.tsv")
    config.data.vocab = "gs://bucket/joint.model"
    with pytest.raises(UserError, match="config.data.vocab is remote"):
        config.validate()


def test_a_flag_is_given_once_and_as_text_in_utf8(monkeypatch, tmp_path):
    """A path of a file may have other bytes: then only the directory is refused."""
    twice, text = "is given twice: ", r"is not UTF-8: expected text in UTF-8, got b'Caf\xe9'"
    locale = "the encoding of the locale is ascii: expected utf-8 for flags"
    for arguments, code, message in (
        (["--from_model=a", "--from_model", "b"], INTERNAL, f"--from_model {twice}a and b; remove"),
        (["--debug", "--debug"], INTERNAL, f"--debug {twice}"),
        (["--checkpoint=Caf\udce9"], CONFIGURATION, f"--checkpoint {text}"),
        (["--to", "Caf\udce9"], CONFIGURATION, f"--to {text}"),
        ([f"--from_model={tmp_path}/\udce9", "--to=a"], CHECKPOINT, "is not a directory of tran"),
        (["--checkpoint=Café", "--debug"], CONFIGURATION, "the flags are incomplete"),
        (["--checkpoint=Café"], CONFIGURATION, locale),
    ):
        if message is locale:
            monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
        done = call_in_process(convert, *arguments)
        assert (done.code, len(done.err)) == (code, 1) and message in done.err[0], done.err


STREAMS = """
import os, sys, types
from seq2seq.cli.command import run_command
from seq2seq.runtime.streams import write_stdout, write_stored

NAMES = ["stdin", "stdout", "stderr"]
connection = types.SimpleNamespace(stop_all_processes=lambda code, message: None)
sys.modules["seq2seq.cli.connection"] = connection  # imports jax, which takes long

def main():
    print("a message", file=sys.stderr, flush=True)
    with open("file", "w") as file:
        assert file.fileno() > 2
    if "read" in case:
        os.read(sys.stdin.fileno(), 9)
    if "write" in case:
        print("a result", flush=True)
    if "results" in case:
        write_stdout("a result\\n")
    if "store" in case:
        write_stored("a result\\n")
        write_stored("another\\n")

for case in map(str.split, sys.argv[1:]):
    if child := os.fork():
        # Flushed: a child would print what is left in the buffer again.
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    sys.argv[1:] = []
    for number in (1, 2):
        os.dup2(os.open(f"{NAMES[number]} {' '.join(case)}", os.O_CREAT | os.O_WRONLY), number)
    for number, name in enumerate(NAMES):
        if f"no_{name}" in case:
            os.close(number)
            setattr(sys, name, None)  # as Python does at its start
        if f"{name}_full" in case:
            os.dup2(os.open("/dev/full", os.O_WRONLY), number)
        if f"{name}_lost" in case:
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, number)
            setattr(sys, name, open(number, "w", closefd=False))
    run_command(lambda: None, main)
    sys.exit(0)
"""


def test_closed_standard_streams_and_pipes_whose_reader_ends(tmp_path):
    """A closed stdin or stdout is an error if it is used, and a closed stderr never is."""
    cases = {  # what is closed or done → exit code, and stderr after "a message"
        "no_stdin no_stdout": (0, ""),
        "no_stdout no_stderr": (0, None),
        "no_stderr read write": (0, None),
        "no_stdout write": (6, "error: stdout is closed: expected a stream for the results"),
        "no_stdin read": (6, "error: OSError: [Errno 9] Bad file descriptor"),
        "stdout_lost write": (0, ""),
        "stdout_full write": (6, "error: stdout or a file cannot be written: No space left"),
        "no_stdout store": (0, ""),  # a file has the results as well
        "stdout_full results": (6, "error: stdout cannot be written: No space left on device"),
        "stdout_full store": (0, ""),
        "stdout_lost store": (0, ""),
        "stderr_lost": (6, None),
        "stderr_lost write": (6, None),
    }
    done = subprocess.run(
        [sys.executable, "-c", STREAMS, *cases],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    codes = map(int, done.stdout.split())
    for (case, (expected, error)), code in zip(cases.items(), codes, strict=True):
        out, err = ((tmp_path / f"{name} {case}").read_text() for name in ("stdout", "stderr"))
        assert code == expected, (case, code, err)
        assert out == "a result\n" * (case == "no_stderr read write"), case
        assert err == "" if error is None else err.startswith(f"a message\n{error}"), (case, err)
        assert error is None or len(err.splitlines()) == 1 + bool(error), (case, err)


FAILURE = """
import sys, types
from seq2seq.cli.command import run_command
from seq2seq.runtime.errors import DATA, UserError

connection = types.SimpleNamespace(stop_all_processes=lambda code, message: print(code, message))
sys.modules["seq2seq.cli.connection"] = connection  # imports jax, which takes long

def main():
    raise UserError(DATA, "no data")

run_command(lambda: None, main)
"""


ENDING = """
import os, sys, threading, time, types
from seq2seq.cli.command import exit_at_once, run_command
from seq2seq.runtime.errors import DATA, UserError

connection = types.SimpleNamespace(stop_all_processes=lambda code, message: None)
sys.modules["seq2seq.cli.connection"] = connection  # imports jax, which takes long

def main():
    threading.Thread(target=time.sleep, args=(600,)).start()
    if case == "lost":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        print("a result", flush=True)
    print("a result")
    raise KeyboardInterrupt if case == "interrupted" else UserError(DATA, "no data")

case = sys.argv.pop()
run_command(lambda: None, main, leave=exit_at_once)
"""


@pytest.mark.parametrize("case, code", [("error", 3), ("interrupted", 130), ("lost", 0)])
def test_a_command_that_exits_at_once_does_not_wait_for_its_threads(case, code):
    done = subprocess.run(
        [sys.executable, "-c", ENDING, case],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,  # less than the thread takes
    )
    errors = {"error": "error: no data\n", "interrupted": "error: interrupted\n", "lost": ""}
    out = "" if case == "lost" else "a result\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, out, errors[case])


@pytest.mark.parametrize("flag", [[], ["--debug"]])
def test_debug_prints_the_traceback_before_the_line_of_an_error_and_changes_nothing_else(flag):
    done = subprocess.run(
        [sys.executable, "-c", FAILURE, *flag],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    *traceback, line = done.stderr.splitlines()
    assert (done.returncode, done.stdout, line) == (3, "3 no data\n", "error: no data")
    assert traceback[:1] == ["Traceback (most recent call last):"] * len(flag)


def test_usable_cores_are_those_of_the_process_or_else_of_the_machine_up_to_eight(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert usable_cores() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(20)))
    assert usable_cores() == 8
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    for cores, used in ((5, 5), (11, 8)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert usable_cores() == used
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.mark.parametrize(("cores", "asked", "devices"), [(20, 0, 8), (3, 0, 3), (20, 1, 1)])
def test_each_core_is_a_device_up_to_eight(monkeypatch, cores, asked, devices):
    import jax

    settings = {}
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    prepare_jax("off", asked)
    assert settings == {
        "jax_num_cpu_devices": devices,
        "jax_threefry_gpu_kernel_lowering": True,
    }


@pytest.fixture
def jax_settings(monkeypatch):
    """The settings that `prepare_jax` changes, which stay as they are."""
    import jax

    settings = {}
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    return settings


def test_without_a_home_directory_nothing_is_cached(monkeypatch, jax_settings, capsys):
    def no_entry(_):
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    paths._note_no_home.cache_clear()
    for _ in range(2):
        prepare_jax("")
    assert corpus_cache("") is None and "jax_compilation_cache_dir" not in jax_settings
    (warning,) = capsys.readouterr().err.splitlines()
    assert "there is no home directory: nothing is cached; set HOME" in warning
    with pytest.raises(UserError, match="no directory for a copy of gs://b/run.*--local_dir"):
        working_copy("gs://b/run", "")
    with pytest.raises(UserError, match="--workdir=~/run: this user has no home directory"):
        PathParser("workdir", check_url).parse("~/run")


@pytest.mark.parametrize("exists", [True, False])
def test_a_compilation_cache_that_cannot_be_written_is_one_warning(
    monkeypatch, jax_settings, tmp_path, capsys, exists
):
    path = tmp_path / "cache"
    if exists:
        path.mkdir()
    else:
        tmp_path.joinpath("file").touch()
        path = tmp_path / "file" / "cache"
    with warnings.catch_warnings(record=True) as shown, largest_file(1000):
        warnings.simplefilter("always")
        prepare_jax(str(path))
        warnings.warn("Error writing persistent compilation cache entry for 'f'", stacklevel=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"compiled programs {path} cannot be written: " in line and not shown
    # The programs in it are used.
    assert jax_settings.get("jax_compilation_cache_dir") == (str(path) if exists else None)


def test_the_compilation_cache_keeps_the_most_recently_used_programs(tmp_path):
    names = [f"jit_step-{i:064x}-cache" for i in range(6)]
    for age, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age, 0))
    other_files = ["notes-cache", f"jit_step-{7:064x}-atime"]
    for name in other_files:
        (tmp_path / name).write_bytes(bytes(1000))
        os.utime(tmp_path / name, (0, 0))
    shrink_cache(tmp_path, 60)
    assert len(list(tmp_path.iterdir())) == 8
    shrink_cache(tmp_path, 39)
    assert {path.name for path in tmp_path.iterdir()} == {*names[:3], *other_files}
    shrink_cache(tmp_path / "absent", 0)
