"""Progress of a decoding job on stderr: lines done, recent throughput, and the time left.

On a terminal it is one line that is updated; in a log file, a new line every few seconds.
"""

import time
from collections import deque
from collections.abc import Iterable

from seq2seq.runtime.logs import format_duration
from seq2seq.runtime.streams import note

LOG_INTERVAL = 5.0  # seconds between two lines in a log
REFRESH = 0.2  # seconds between two updates on a terminal
RECENT = 60.0  # seconds over which the throughput is measured


class DecodingProgress:
    """Counts lines when their compiled call ends, which may be before they are written."""

    def __init__(self, total: int = 0, shown: bool = True, live: bool = False):
        """`total`: number of lines (0: unknown). `shown`: write to stderr. `live`: update one line
        of a terminal."""
        self.total, self._shown, self._live = total, shown, live
        self.done = self.reused = 0
        self.started = self._reported = time.perf_counter()
        self._recent: deque[tuple[float, int]] = (
            deque()
        )  # (time, lines done) after each compiled call

    def add_reused(self, lines: int) -> None:
        """Count lines that an earlier run of the same job has finished."""
        self.reused += lines

    def add_done(self, lines: int) -> None:
        """Count lines that are done."""
        if not lines:
            return
        now = time.perf_counter()
        self.done += lines
        if len(self._recent) > 1 and now - self._recent[-2][0] < REFRESH:
            self._recent.pop()  # results may come one by one
        self._recent.append((now, self.done))
        while len(self._recent) > 2 and now - self._recent[0][0] > RECENT:
            self._recent.popleft()
        if self._shown and now - self._reported >= (REFRESH if self._live else LOG_INTERVAL):
            self._reported = now
            note(self.line(), "" if self._live else "\n")

    def line(self) -> str:
        """Lines done, recent lines per second, time left.

        The first compiled call includes compilation, so the throughput is measured from its end. It
        is shown after LOG_INTERVAL seconds, because single results come in bursts.
        """
        (start, before), (end, after) = self._recent[0], self._recent[-1]
        total = f" of {self.total:,}" if self.total else ""
        text = f"{self.done + self.reused:,}{total} lines"
        if end - start < LOG_INTERVAL:
            return text
        rate = (after - before) / (end - start)
        text += f", {rate:,.1f} lines/s"
        if not self.total:
            return text
        left = max(0, self.total - self.done - self.reused) / rate
        return f"{text}, {format_duration(left)} left"

    def report(self, blank: int, truncated: int, more: Iterable[str] = ()) -> None:
        """Write the last line of a job, with `more` lines before it."""
        if not self._shown:
            return
        for line in more:
            note(line)
        seconds = time.perf_counter() - self.started
        reused = f" ({self.reused} more reused from an earlier run)" if self.reused else ""
        note(
            f"{self.done} lines{reused}, {blank} blank, {truncated} truncated, "
            f"{seconds:.1f} s, {self.done / seconds:,.1f} lines/s"
        )
