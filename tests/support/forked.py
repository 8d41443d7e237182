"""Commands as forks of a server process that has imported the program once.

As a script, this is the server: it reads a JSON line per command. A command runs in a process of
its own, so that flags, standard streams, devices, signals and exit are those of a new process, and
several commands can run at the same time. Its keeper, a process between both, prints the process id
of the command, waits for its end and writes its exit code and peak memory into a named pipe.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from select import select
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LONGEST = 500  # seconds; then SIGALRM ends the command
SERVERS: list[subprocess.Popen] = []


class Done(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: list[str]
    peak: int  # peak memory in KiB


@cache
def server(settings: frozenset[tuple[str, str]]) -> subprocess.Popen:
    """The server process for the environment variables that jax reads at import."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        text=True,
        stdout=subprocess.PIPE,
        env=os.environ | dict(settings),
    )
    SERVERS.append(process)
    return process


def end_servers() -> None:
    """Close the stdin of all servers, which ends them, and wait for them."""
    for process in SERVERS:
        process.stdin.close()
        process.wait()
    SERVERS.clear()
    server.cache_clear()


class Process:
    """A running command, with the attributes of subprocess.Popen that tests use."""

    def __init__(self, arguments, environment, files=(os.devnull,) * 3, cwd=ROOT, no_device=False):
        """Start `python ARGUMENTS…`. `files` are the paths of stdin, stdout and stderr; with
        `no_device`, any use of a device is an error."""
        settings = frozenset(item for item in environment.items() if item[0].startswith("JAX_"))
        flags = environment.get("XLA_FLAGS", ""), os.environ.get("TESTS_XLA_FLAGS", "")
        with tempfile.TemporaryDirectory() as path:
            result = os.path.join(path, "result")
            os.mkfifo(result)
            command = {
                "arguments": list(map(str, arguments)),
                "files": list(map(str, files)),
                "cwd": str(cwd),
                "environment": {**environment, "XLA_FLAGS": " ".join(flags).strip()},
                "no_device": no_device,
            }
            line = json.dumps({"result": result, "command": command})
            print(line, file=server(settings).stdin, flush=True)
            self.pid = int(server(settings).stdout.readline())
            self._result = open(result, encoding="utf-8")  # when the keeper has opened it
        self.returncode = self.peak = None

    def poll(self):
        """The exit code, or None while the command runs."""
        if self.returncode is None and select([self._result], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout=LONGEST):
        """The exit code, at the end of the command."""
        if self.returncode is None:
            if not select([self._result], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            with self._result:
                self.returncode, self.peak = json.loads(self._result.read())
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def environment_of(devices: int) -> dict[str, str]:
    """The environment of a command with this number of CPU devices; 0: of one without devices."""
    flags = f"--xla_force_host_platform_device_count={devices}" if devices else ""
    return {**os.environ, "NPROC": "16", "XLA_FLAGS": flags}


def start_with_stderr(arguments, environment) -> Process:
    """A command whose stderr is read from the attribute `stderr` while it runs."""
    with tempfile.TemporaryDirectory() as path:
        stderr = os.path.join(path, "stderr")
        os.mkfifo(stderr)
        process = Process(arguments, environment, (os.devnull, os.devnull, stderr))
        process.stderr = open(stderr, encoding="utf-8")  # when the command has opened it
    return process


def call_forked(arguments, stdin=b"", cwd=ROOT, devices=1, environment=()) -> Done:
    """Run `python ARGUMENTS…`; with 0 `devices`, any use of a device is an error."""
    environment = {**environment_of(devices), **dict(environment)}
    with tempfile.TemporaryDirectory() as path:
        files = [os.path.join(path, name) for name in ("stdin", "stdout", "stderr")]
        os.mkfifo(files[0])
        process = Process(arguments, environment, files, cwd, no_device=not devices)
        with suppress(BrokenPipeError), open(files[0], "wb", buffering=0) as pipe:
            pipe.write(stdin)
        process.wait()
        out, err = (Path(file).read_bytes().decode() for file in files[1:])
    return Done(process.returncode, out, err.splitlines(), process.peak)


def run_in_child(arguments, files, cwd, environment, no_device) -> None:
    """In the forked child, do what `python ARGUMENTS…` does."""
    import runpy

    import jax

    signal.alarm(LONGEST)
    for number, name in enumerate(files):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(name, flags, 0o600), number)
    # New objects: those of the server may take a pipe for a file.
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if no_device:
        jax.config.update("jax_platforms", "none_may_be_initialised")
    first = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [os.path.dirname(arguments[0]), *first]
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def fork() -> int:
    with warnings.catch_warnings():  # jax warns about its threads, which are still idle
        warnings.simplefilter("ignore")
        return os.fork()


def keep(child: int, result: str) -> None:
    """In the keeper of a command, report its process id and its end, and exit."""
    print(child, flush=True)
    with open(result, "w", encoding="utf-8") as file:
        _, status, usage = os.wait4(child, 0)
        json.dump((os.waitstatus_to_exitcode(status), usage.ru_maxrss), file)
    os._exit(0)


def serve() -> None:
    sys.path[0] = str(ROOT)
    from seq2seq import decode, train  # noqa: F401

    gc.freeze()  # each child collects only its own objects at exit: saves 0.6 s
    keepers = []
    for line in sys.stdin:
        request = json.loads(line)
        keepers = [keeper for keeper in keepers if os.waitpid(keeper, os.WNOHANG) == (0, 0)]
        keeper = fork()
        if keeper == 0:
            child = fork()
            if child == 0:
                return run_in_child(**request["command"])  # the child exits at its end
            keep(child, request["result"])
        keepers.append(keeper)
    for keeper in keepers:  # so that their time counts; commands that still run are left alone
        os.waitpid(keeper, os.WNOHANG)


if __name__ == "__main__":
    serve()
