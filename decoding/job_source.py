"""Numbered lines on their way through the engine: items, jobs, blank lines, translations."""

from collections.abc import Iterator
from typing import NamedTuple

from decoding.calls import Job
from decoding.formats import Hypothesis, Item
from decoding.streaming import IDLE
from runtime.prefetch import Prefetched


class Translation(NamedTuple):
    """The translations of one line, best first (samples: in the order drawn)."""

    hypotheses: list[Hypothesis]
    tokens: int  # length of the source, with the end token
    kept: int  # its length after truncation

    @property
    def text(self) -> str:
        return self.hypotheses[0].text


class JobSource:
    """The jobs for `Engine.search`, and the translations of blank lines, which are not searched.

    An iterator over the jobs as they are read. While none is available it gives None: at once if
    lines are in flight or blank lines wait to be yielded, else every IDLE seconds. An error of the
    input ends the jobs and is kept in `error`, so that the lines before it are translated first.
    """

    def __init__(self, jobs: Prefetched):
        self.in_flight = 0  # lines given to the engine without a result yet; the caller subtracts
        self.error: Exception | None = None
        self._jobs = jobs
        self._blank: dict[int, Translation] = {}

    def take_blank(self) -> dict[int, Translation]:
        """The translations of the blank lines read since the last call, by line number."""
        blank, self._blank = self._blank, {}
        return blank

    def __iter__(self) -> Iterator[Job | None]:
        while True:
            if not self._jobs.ready(0 if self.in_flight or self._blank else IDLE):
                yield None
                continue
            try:
                job = next(self._jobs)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 – raised by the caller
                self.error = error
                return
            for number, ids, tokens in zip(job.numbers, job.sources, job.token_counts, strict=True):
                if ids:
                    self.in_flight += 1
                else:
                    self._blank[number] = Translation([Hypothesis("", 0.0)], tokens, 0)
            yield job


def as_item(line: tuple[int, str | Item]) -> tuple[int, Item]:
    """A numbered line as an item. TypeError if it is neither a string nor an item."""
    number, item = line
    if isinstance(item, str):
        item = Item(item, item)
    if not isinstance(item, Item):
        raise TypeError(f"lines[{number}] must be a string, got {type(item).__name__} ({item!r})")
    return number, item
