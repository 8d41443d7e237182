"""Requests that arrive at a storage for tests, and the faults of further ones."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Request(NamedTuple):
    """A request that arrived at the proxy."""

    kind: str  # read, info, list, write, delete, other
    name: str  # of the object, or a prefix
    method: str
    target: str  # path and query as sent
    size: int  # bytes of its body


@dataclass
class Fault:
    """What happens to the requests that match.

    `action`: a status to answer; a function to call before the request is forwarded (a delay, a
    change of an object); or one of

    cut        the connection is closed, the request is not forwarded
    lose       the request is forwarded, the connection is closed without a response
    truncate   the connection is closed in the middle of the response's body
    flip       one bit in the middle of the response's body is changed
    """

    action: int | str | Callable[[], object]
    kind: str = ""  # "": all
    name: str = ""  # a regular expression, found anywhere in the name
    times: float = 1  # number of requests
    after: int = 0  # number of requests that match before them
    until: float = float("inf")  # time.monotonic()

    def takes(self, request: Request) -> bool:
        """Whether the fault applies to a request, which is then counted."""
        matches = self.kind in ("", request.kind) and re.search(self.name, request.name)
        if not matches or self.times <= 0 or time.monotonic() > self.until:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class Traffic:
    """The requests that arrived, and the faults of further ones."""

    def __init__(self):
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.lock = threading.Lock()  # of faults and requests

    def action(self, request: Request) -> int | str | Callable[[], object] | None:
        """The action of the first fault that takes a request, after a call if it is a function."""
        with self.lock:
            self.requests.append(request)
            fault = next((fault for fault in self.faults if fault.takes(request)), None)
        action = fault.action if fault else None
        if callable(action):
            action()
        return action
