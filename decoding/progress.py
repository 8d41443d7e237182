"""Progress of a decoding job on stderr: lines done, recent speed, and the time left.

On a terminal it is one line that updates, elsewhere a line every few seconds.
"""

import sys
import time
from collections import deque

from runtime.durations import format_duration

EVERY = 5.0  # seconds between two lines in a log
REFRESH = 0.2  # seconds between two updates on a terminal
RECENT = 60.0  # seconds of work that the speed is measured over


class Progress:
    """Counts lines when a compiled call has finished them, not when they are written in order."""

    def __init__(self, total: int = 0, shown: bool = True, live: bool | None = None):
        """Of `total` lines (0: unknown), or silent. `live` updates one line; by default where
        stderr is a terminal."""
        self.total, self._shown = total, shown
        self._live = sys.stderr.isatty() if live is None else live
        self.done = self.earlier = 0
        self.started = self._reported = time.perf_counter()
        self._recent = deque()  # (time, lines done) after each compiled call

    def found(self, lines: int) -> None:
        """So many lines were finished by an earlier start of the same job."""
        self.earlier += lines

    def finished(self, lines: int) -> None:
        """So many more lines are done."""
        if not lines:
            return
        now = time.perf_counter()
        self.done += lines
        if len(self._recent) > 1 and now - self._recent[-2][0] < REFRESH:
            self._recent.pop()  # results may come one by one
        self._recent.append((now, self.done))
        while len(self._recent) > 2 and now - self._recent[0][0] > RECENT:
            self._recent.popleft()
        if self._shown and now - self._reported >= (REFRESH if self._live else EVERY):
            self._reported = now
            note(self.line(), "" if self._live else "\n")

    def line(self) -> str:
        """Lines done, lines per second of recent work, time left.

        The first compiled call includes compilation, so the speed is measured from its end. It is
        given after EVERY seconds, as single results come in bursts.
        """
        (begin, before), (end, after) = self._recent[0], self._recent[-1]
        of_all = f" of {self.total:,}" if self.total else ""
        text = f"{self.done + self.earlier:,}{of_all} lines"
        if end - begin < EVERY:
            return text
        rate = (after - before) / (end - begin)
        text += f", {rate:,.1f} lines/s"
        if not self.total:
            return text
        left = max(0, self.total - self.done - self.earlier) / rate
        return f"{text}, {format_duration(left)} left"

    def report(self, blank: int, truncated: int) -> None:
        """The last line of a job."""
        if not self._shown:
            return
        seconds = time.perf_counter() - self.started
        earlier = f" ({self.earlier} more from an earlier start)" if self.earlier else ""
        note(
            f"{self.done} lines{earlier}, {blank} blank, {truncated} truncated, "
            f"{seconds:.1f} s, {self.done / seconds:,.1f} lines/s"
        )


def note(text: str, end: str = "\n") -> None:
    """A line on stderr, in the place of the line that updates."""
    clear = "\r\033[K" if sys.stderr.isatty() else ""
    print(f"{clear}{text}", end=end, file=sys.stderr, flush=True)
