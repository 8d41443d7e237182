"""A lock in object storage: one process at a time writes a run or an output.

The objects LOCK/000001, LOCK/000002, … name holders; the one with the highest number holds the
lock. An object is created only if there is none of its name (a precondition of the storage), so of
several processes that take over number n, one creates n + 1. Only its creator writes an object
again: a thread refreshes its time. A holder that did not do so for STALE seconds, or a process of
this host that has ended, is taken over; one that continues finds a higher number when it refreshes.
"""

import json
import os
import platform
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from seq2seq.files import remote
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.logs import Log

REFRESH = 60.0  # seconds between two refreshes
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STALE = 600.0  # seconds without a refresh after which a lock is taken over

# The locks of this process by their tokens; None while one is being acquired.
_held: dict[str, "RemoteLock | None"] = {}


class RemoteLock:
    """Holds a lock until `release`."""

    def __init__(self, url: str, held: str, advice: str, log: Log):
        """Raises UserError(OUTPUT) "`held` (holder); `advice`" if another process holds the lock,
        and OSError if the storage cannot be reached. `log` receives warnings."""
        self._url, self._held, self._log = url, held, log
        self._token = uuid4().hex
        _held[self._token] = None  # before its object exists, which other threads would take over
        try:
            self._number = self._acquire(advice)
        except BaseException:
            del _held[self._token]
            raise
        self._failure, self._refreshed = "", time.monotonic()
        _held[self._token] = self
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh_until_end, daemon=True)
        self._thread.start()

    def _acquire(self, advice: str) -> int:
        while True:
            numbers = self._numbers()
            holder = self._content(numbers[-1]) if numbers else None
            if holder is not None:
                if not _is_abandoned(holder):
                    raise UserError(OUTPUT, f"{self._held} ({_named(holder)}); {advice}")
                self._log(f"warning: the lock {self._url} is taken over from {_named(holder)}")
            number = max(numbers, default=0) + 1
            try:
                remote.write(self._object(number), self._own_content(), new=True)
            except FileExistsError:  # another process was faster, or an attempt that seemed to fail
                content = self._content(number)
                if content is None or content["token"] != self._token:
                    continue
            # Another process can have taken over, released and acquired the lock since the list.
            if set(self._numbers()) - {number, *numbers}:
                remote.delete(self._object(number))
                continue
            for superseded in numbers:
                remote.delete(self._object(superseded))
            return number

    def check(self) -> None:
        """UserError(OUTPUT) if another process has taken over the lock."""
        if self._failure:
            raise UserError(OUTPUT, self._failure)

    def verify(self) -> None:
        """`check`, after a refresh if the last one is not recent. OSError if that fails."""
        if time.monotonic() - self._refreshed > 2 * REFRESH:
            self._refresh()
        self.check()

    def release(self) -> None:
        """Give the lock back. OSError if the storage cannot be reached: it then becomes stale."""
        self._ended.set()
        self._thread.join()
        _held.pop(self._token, None)
        if not self._failure:
            remote.delete(self._object(self._number))

    def _refresh_until_end(self) -> None:
        while not self._ended.wait(REFRESH):
            try:
                self._refresh()
            except OSError as error:
                self._log(f"warning: the lock {self._url} could not be refreshed: {error}")
            if self._failure:
                return

    def _refresh(self) -> None:
        numbers = self._numbers()
        holder = self._content(numbers[-1]) if numbers else None
        if holder is None or (numbers[-1], holder["token"]) != (self._number, self._token):
            by = f" by {_named(holder)}" if holder else ""
            self._failure = f"the lock {self._url} was taken over{by}, because it was not refreshed"
            return
        remote.write(self._object(self._number), self._own_content())
        self._refreshed = time.monotonic()

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in remote.list_files(self._url) if name.isdecimal())

    def _content(self, number: int) -> dict[str, Any] | None:
        """The holder in an object; None if it has been deleted. Unreadable ones are stale."""
        try:
            content = remote.read(self._object(number))
        except FileNotFoundError:
            return None
        try:
            stored = json.loads(content)
            holder = {"token": stored["token"], "host": str(stored["host"]),
                      "namespace": str(stored["namespace"]),
                      "process": int(stored["process"]), "time": float(stored["time"])}  # fmt: skip
            _named(holder)  # the time has a date
            return holder
        except (ValueError, KeyError, TypeError, OverflowError, OSError):
            return {
                "token": "",
                "host": "an unknown host",
                "namespace": "",
                "process": 0,
                "time": 0.0,
            }

    def _own_content(self) -> bytes:
        holder = {
            "token": self._token, "host": platform.node(), "namespace": _namespace(),
            "process": os.getpid(), "time": time.time(),
        }  # fmt: skip
        return json.dumps(holder).encode()

    def _object(self, number: int) -> str:
        return f"{self._url}/{number:06d}"


def release_all(seconds: float) -> None:
    """Give all locks of this process back, before it ends without a normal exit; waits for at most
    this time."""
    if not _held:
        return

    def release() -> None:
        for lock in filter(None, list(_held.values())):
            with suppress(OSError):
                lock.release()

    (thread := threading.Thread(target=release, daemon=True)).start()
    thread.join(seconds)


def _is_abandoned(holder: dict[str, Any]) -> bool:
    """Whether the lock may be taken over. A process id has a meaning within one host and one
    namespace of process ids, such as that of a container."""
    if time.time() - holder["time"] >= STALE:
        return True
    if holder["namespace"] != _namespace():
        return False
    if holder["process"] == os.getpid():  # an earlier process had the same id
        return holder["token"] not in _held
    try:
        os.kill(holder["process"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it runs, as another user
        pass
    return False


def _namespace() -> str:
    """What tells this host, since its last start, and this namespace of process ids from others;
    new in each process where it is not known."""
    try:
        return BOOT_ID.read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return uuid4().hex


def _named(holder: dict[str, Any]) -> str:
    since = datetime.fromtimestamp(holder["time"], UTC).isoformat(timespec="seconds")
    return f"process {holder['process']} on {holder['host']}, last seen {since}"
