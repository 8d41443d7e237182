"""Object storage for tests: emulators of GCS and S3 on loopback, each behind a proxy with faults.

"memory" is a storage in this process with the same faults, for what depends on neither of them.

    with object_storage("gs") as storage:            # or "s3", which takes 0.3 s, or "memory"
        storage.fault(503, "read", "corpus", times=3)    # the next three reads of such an object
        remote.read(f"{storage.url}/corpus.txt")
        subprocess.run(…, env=os.environ | storage.environment)

While it runs, the environment variables of this process point at the proxy. A request has a kind,
`read`, `info`, `list`, `write` or `delete`, and the name of its object (of a list: the prefix), so
that a test can be the same for both storages. `storage.requests` are those that arrived.
"""

import asyncio
import importlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest

from seq2seq.files import remote
from tests.support.storage.emulators import amazon, google
from tests.support.storage.faults import Fault, Request, Traffic
from tests.support.storage.memory import Memory
from tests.support.storage.proxy import Proxy


class Storage(NamedTuple):
    """A running emulator behind a proxy, or a storage in memory, which is its own proxy."""

    scheme: str
    url: str  # of a bucket
    environment: dict[str, str]  # of this process and its children
    proxy: Traffic

    def fault(
        self,
        action: int | str | Callable[[], object],
        kind: str = "",
        name: str = "",
        times: float = 1,
        after: int = 0,
        seconds: float | None = None,
    ) -> Fault:
        """Inject a fault in the next `times` requests that match, or in those of the next
        `seconds`; `after` so many of them."""
        fault = Fault(action, kind, name, times, after)
        if seconds is not None:
            fault.times, fault.until = float("inf"), time.monotonic() + seconds
        with self.proxy.lock:
            self.proxy.faults.append(fault)
        return fault

    @property
    def requests(self) -> list[Request]:
        """The requests that arrived since the last `clear`."""
        return self.proxy.requests

    def count(self, kind: str = "", name: str = "") -> int:
        """How many requests of a kind with a name that matches arrived."""
        matching = [r for r in self.requests if kind in ("", r.kind) and re.search(name, r.name)]
        return len(matching)

    def clear(self) -> None:
        """Remove the faults and forget the requests."""
        with self.proxy.lock:
            self.proxy.faults.clear()
            self.proxy.requests.clear()


@contextmanager
def object_storage(scheme: str) -> Iterator[Storage]:
    """A storage "gs", "s3" or "memory" with an empty bucket `bucket`; skips if its packages are
    missing."""
    if scheme == "memory":
        with pytest.MonkeyPatch.context() as patch:
            memory = Memory()
            patch.setattr(remote, "_file_system", lambda url: (memory, url.partition("://")[2]))
            yield Storage(scheme, "memory://bucket", {}, memory)
        return
    start = {"gs": google, "s3": amazon}[scheme]
    with start() as (port, parse, names, others), pytest.MonkeyPatch.context() as patch:
        proxy = Proxy(port, parse)
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        environment = {**dict.fromkeys(names, proxy.address), **others}
        for name, value in environment.items():
            patch.setenv(name, value)
        forget_file_systems()
        try:
            yield Storage(scheme, f"{scheme}://bucket", environment, proxy)
        finally:
            forget_file_systems()
            proxy.shutdown()
            proxy.server_close()
            thread.join()


def forget_file_systems() -> None:
    """Drop the instances that fsspec keeps, which are connected to other addresses."""
    import fsspec

    for name in "gs", "gcs", "s3":
        with suppress(ImportError):
            fsspec.get_filesystem_class(name).clear_instance_cache()


class Quick:
    """The module asyncio, with a `sleep` that does not sleep."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def shorten_pauses(patch: pytest.MonkeyPatch) -> None:
    """Retry without pauses, ours and those of the libraries, which take up to a minute."""
    patch.setattr("seq2seq.files.remote.PAUSES", (0.001,) * 3)
    for module in "gcsfs.retry", "s3fs.core", "aiobotocore.endpoint":
        with suppress(ImportError):
            patch.setattr(importlib.import_module(module), "asyncio", Quick())
