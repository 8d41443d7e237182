"""Command lines that must end before any device: one process imports all and forks.

As a script it is that process: it reads a JSON line for each command and answers with its exit
code. Only the import is shared; flags, standard streams and the exit are those of a new process.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


@cache
def server() -> subprocess.Popen:
    """The process that forks; it ends when its stdin is closed, with the tests' process."""
    # Read at the import of jax: any use of a device is an error.
    environment = {**os.environ, "JAX_PLATFORMS": "none_may_be_initialised", "XLA_FLAGS": ""}
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, text=True,
                            stdout=subprocess.PIPE, env=environment)


def call_forked(arguments, stdin=b"", cwd=ROOT, environment=()) -> tuple[int, str, list[str]]:
    """(exit code, stdout, lines of stderr) of `python ARGUMENTS…`."""
    with tempfile.TemporaryDirectory() as path:
        files = [os.path.join(path, name) for name in ("stdin", "stdout", "stderr")]
        Path(files[0]).write_bytes(stdin)
        command = {"arguments": [str(one) for one in arguments], "files": files, "cwd": str(cwd),
                   "environment": dict(environment)}
        print(json.dumps(command), file=server().stdin, flush=True)
        code = int(server().stdout.readline())
        out, err = (Path(file).read_text(encoding="utf-8") for file in files[1:])
    return code, out, err.splitlines()


def become(arguments, files, cwd, environment) -> None:
    """In the child: what `python ARGUMENTS…` is; does not return."""
    import runpy

    for number, name in enumerate(files):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(name, flags, 0o600), number)
    os.chdir(cwd)
    os.environ.update(environment)
    first = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [os.path.dirname(arguments[0]), *first]
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def serve() -> None:
    sys.path[0] = str(ROOT)
    import decode  # noqa: F401
    import train  # noqa: F401

    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with warnings.catch_warnings():  # jax: it has threads; no device was used, so none is busy
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            return become(**json.loads(line))  # its end is that of this process
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, file=replies, flush=True)


if __name__ == "__main__":
    serve()
