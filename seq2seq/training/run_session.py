"""The run directory from the start to the end of train.py: locked, logged, uploaded, unlocked."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seq2seq.files.remote import is_remote
from seq2seq.runtime import processes
from seq2seq.runtime.errors import UserError
from seq2seq.runtime.logs import format_duration
from seq2seq.runtime.signals import StopFlag, Stopped
from seq2seq.storage.run import Run


@contextmanager
def open_run(path: Path, workdir: str, stop: StopFlag, overwrite: bool) -> Iterator[Run]:
    """The run in the directory `path`, which is the working copy of `workdir` if that is a URL.

    At the end its files are uploaded and its lock is released. The log has the duration, what
    stopped the run, or the error that ended it. With `overwrite` nothing of an earlier run is
    downloaded.
    """
    started = time.perf_counter()
    url = workdir if is_remote(workdir) else ""
    run = Run(path, url)
    try:
        run.open_replica(overwrite)
        yield run
        run.log(f"done in {format_duration(time.perf_counter() - started)}")
        processes.run_on_first("the last upload", run.finish_upload)
    except Stopped as stopped:
        # Before, the earlier run may not be deleted yet.
        changed = " without --overwrite" if overwrite and stop.deferred else ""
        run.log(f"{stopped}; run the same command{changed} to resume")
        if stop.deferred:  # all processes stop here
            processes.run_on_first("the last upload", run.finish_upload)
        raise
    except UserError as error:
        stop.defer()
        run.note(f"error: {error}")
        run.try_upload()
        raise
    finally:
        stop.defer()  # a signal during the exit raises nothing
        run.close()
