"""Commands as forks of a server process that has imported the program once.

As a script, this is the server: it reads a JSON line per command and answers with its exit code and
peak memory. Flags, standard streams, devices and exit are those of a new process. Commands that
receive signals or run concurrently are started as separate processes instead.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LONGEST = 500  # seconds; then SIGALRM ends the command


class Done(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: list[str]
    peak: int  # peak memory in KiB


@cache
def server(settings: frozenset[tuple[str, str]]) -> subprocess.Popen:
    """The server process for the environment variables that jax reads at import.

    It ends when its stdin is closed, at the end of the test process."""
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        text=True,
        stdout=subprocess.PIPE,
        env=os.environ | dict(settings),
    )


def call_forked(arguments, stdin=b"", cwd=ROOT, devices=1, environment=()) -> Done:
    """Run `python ARGUMENTS…`; with 0 `devices`, any use of a device is an error."""
    flags = f"--xla_force_host_platform_device_count={devices}" if devices else ""
    environment = {**os.environ, "NPROC": "16", "XLA_FLAGS": flags, **dict(environment)}
    settings = frozenset(item for item in environment.items() if item[0].startswith("JAX_"))
    with tempfile.TemporaryDirectory() as path:
        files = [os.path.join(path, name) for name in ("stdin", "stdout", "stderr")]
        os.mkfifo(files[0])
        command = {
            "arguments": [str(one) for one in arguments],
            "files": files,
            "cwd": str(cwd),
            "environment": environment,
            "no_device": not devices,
        }
        print(json.dumps(command), file=server(settings).stdin, flush=True)
        with suppress(BrokenPipeError), open(files[0], "wb", buffering=0) as pipe:
            pipe.write(stdin)
        code, peak = json.loads(server(settings).stdout.readline())
        out, err = (Path(file).read_bytes().decode() for file in files[1:])
    return Done(code, out, err.splitlines(), peak)


def run_in_child(arguments, files, cwd, environment, no_device) -> None:
    """In the forked child, do what `python ARGUMENTS…` does."""
    import runpy
    import signal

    import jax

    signal.alarm(LONGEST)
    for number, name in enumerate(files):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(name, flags, 0o600), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if no_device:
        jax.config.update("jax_platforms", "none_may_be_initialised")
    first = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [os.path.dirname(arguments[0]), *first]
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def serve() -> None:
    sys.path[0] = str(ROOT)
    import tensorboardX  # noqa: F401

    import decode  # noqa: F401
    import train  # noqa: F401

    gc.freeze()  # each child collects only its own objects at exit: saves 0.6 s
    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with warnings.catch_warnings():  # jax warns about its threads, which are still idle
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            return run_in_child(**json.loads(line))  # the child exits at its end
        _, status, usage = os.wait4(child, 0)
        answer = os.waitstatus_to_exitcode(status), usage.ru_maxrss
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    serve()
