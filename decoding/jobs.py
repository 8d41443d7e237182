"""Long jobs: a file in shards and chunks, of which each finished one survives a kill.

Chunks lie in OUTPUT.parts under a fingerprint of everything that decides what they hold; the same
command goes on behind the last one, another command begins anew. OUTPUT appears whole, by rename.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from data.errors import CONFIGURATION, OUTPUT, UserError
from data.files import created, write_whole
from data.text_files import expanded
from training import hosts

CHUNK = 4096  # lines


def shard_of(spec: str) -> tuple[int, int]:
    """"2/8" → (2, 8). UserError(CONFIGURATION) if it is nothing of the kind."""
    part, _, parts = spec.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise UserError(CONFIGURATION, f"--shard must be PART/PARTS, from 1/PARTS, got {spec!r}")
    return int(part), int(parts)


def shard_lines(lines: int, part: int, parts: int) -> range:
    """The lines (from 0) of a part; all parts one after the other are all lines."""
    return range((part - 1) * lines // parts, part * lines // parts)


def fingerprint(facts: dict[str, Any], *paths: str) -> str:
    """sha256 of what is said and of what files hold, those in a directory in order."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in map(Path, map(expanded, paths)):
        inside = sorted(one for one in path.rglob("*") if one.is_file()) or [path]
        for one in inside:
            with open(one, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def chunks_of(items: Iterator, size: int) -> Iterator[tuple[int, list]]:
    """(number of its first item, items) of each run of `size` items."""
    first = 0
    while chunk := list(islice(items, size)):
        yield first, chunk
        first += len(chunk)


class Chunks:
    """The finished parts of one output file."""

    def __init__(self, output: str, fingerprint: str):
        """Takes over what the same command left behind, and removes what another one did."""
        self._output = os.path.realpath(expanded(output))
        self._directory, self._temporary = f"{self._output}.parts", f"{self._output}.parts.tmp"
        mark = os.path.join(self._directory, "fingerprint")
        try:
            with open(mark, encoding="ascii") as file:
                same = file.read() == fingerprint
        except FileNotFoundError:
            same = False
            if os.path.exists(self._directory):
                raise UserError(OUTPUT, f"{self._directory} is in the way and not of a decoding "
                                "job; move it, or choose another --output") from None
        if not same:
            self._remove()
            os.makedirs(self._temporary)
            write_whole(os.path.join(self._temporary, "fingerprint"), fingerprint)
            os.rename(self._temporary, self._directory)

    def finished(self, index: int) -> bool:
        """Whether chunk `index` is there, whole."""
        return os.path.exists(self._path(index))

    def run(self, items: Iterable, work: Callable[[int, Iterator], Iterator[str]]) -> int:
        """`work(first, rest)` of what is not there yet, then the whole file.

        Several processes take the chunks by turns. Returns how many items were there already.
        """
        items, index, there = iter(items), 0, 0
        alone = hosts.count() == 1
        for first, chunk in chunks_of(items, CHUNK):
            if self.finished(index) or index % hosts.count() != hosts.index():
                there += len(chunk) * self.finished(index)
                index += 1
                continue
            lines = work(first, chain(chunk, items) if alone else iter(chunk))
            while done := list(islice(lines, CHUNK)):
                write_whole(self._path(index), "".join(f"{line}\n" for line in done))
                index += 1
        hosts.meet("the last chunk")
        hosts.by_the_first("the whole file", self._join, index)
        return there

    def _join(self, count):
        with created(self._output) as whole:
            for index in range(count):
                with open(self._path(index), "rb") as part:
                    shutil.copyfileobj(part, whole)
        self._remove()

    def _remove(self):
        """By rename first: a directory of chunks is never without its fingerprint."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        if os.path.exists(self._directory):
            os.rename(self._directory, self._temporary)
            shutil.rmtree(self._temporary)

    def _path(self, index):
        return os.path.join(self._directory, f"{index:06d}")
