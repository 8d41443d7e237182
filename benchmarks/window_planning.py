"""Benchmark: how long a window takes to plan, and how long training waits for batches.

    python benchmarks/window_planning.py [--pairs=30000,1000000,10000000] [--directory=DIR]
For each size, a store of random token ids (about 20 per side) is written, mapped, and read by the
batches of training. A loop takes a batch every STEP seconds, in which it sleeps, up to a few
batches of the third window; its waits for a batch are measured. Then windows are planned one by one
in this process. Prints a Markdown table; recorded in benchmarks/corpus_size.md.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.data.batching.batches import Batches, DataPosition
from seq2seq.data.batching.windows import WINDOW, Windows
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.tokens.pairs import Pairs, Ragged
from seq2seq.data.tokens.store_writer import StoreWriter
from seq2seq.data.tokens.token_store import open_store
from seq2seq.data.tokens.training_pairs import EncodedPart, TrainingPairs
from seq2seq.runtime.command import run_command
from seq2seq.runtime.path_flags import define_path

STEP = 0.02  # seconds
ROWS, CAPACITY = 64, 256
APPEND = 100_000  # pairs
ROUNDS = 3


def main() -> None:
    f = flags.FLAGS
    print("| pairs | planning a window, s | pairs/s | first batch, s | longest wait after it, ms |")
    print("|---|---|---|---|---|")
    for count in map(int, f.pairs):
        with tempfile.TemporaryDirectory(dir=f.directory or None) as directory:
            pairs = random_pairs(Path(directory), count)
            first, longest = waits(pairs)
            windows = Windows(pairs, (CAPACITY, CAPACITY), seed=0, size=WINDOW)
            seconds = statistics.median(planning_time(windows, epoch) for epoch in range(ROUNDS))
            num_pairs = windows.plan(0, 0).num_pairs
            print(
                f"| {count:,} | {seconds:.2f} | {num_pairs / seconds:,.0f} | {first:.2f} | "
                f"{1000 * longest:.1f} |",
                flush=True,
            )


def random_pairs(directory: Path, count: int) -> TrainingPairs:
    """A mapped store of `count` pairs of random lengths and ids."""
    random = np.random.default_rng(0)
    writer = StoreWriter(directory, key="random", largest_id=8000)
    for start in range(0, count, APPEND):
        size = min(APPEND, count - start)
        source = np.clip(random.lognormal(2.9, 0.5, size).astype(np.int64), 1, CAPACITY - 1)
        target = np.clip((source * random.normal(1.0, 0.15, size)).astype(np.int64), 1, 255)
        sides = (random_sequences(random, lengths) for lengths in (source, target))
        writer.append(Pairs(*sides), np.arange(start, start + size), None)
    writer.finish(None)
    part = EncodedPart(("a", "b"), 1.0, open_store(directory)[0], Counts(count), {})
    return TrainingPairs([part])


def random_sequences(random: np.random.Generator, lengths: np.ndarray) -> Ragged:
    """Sequences of these lengths."""
    ids = random.integers(4, 8000, int(lengths.sum()), np.int32)
    return Ragged(ids, np.concatenate([[0], np.cumsum(lengths)]))


def waits(pairs: TrainingPairs) -> tuple[float, float]:
    """The seconds until the first batch, and the longest wait for one of the later batches."""
    batches = Batches(pairs, ROWS, CAPACITY, CAPACITY, seed=0)
    started, longest, ends, last = time.perf_counter(), 0.0, 0, None
    stream = batches.iterate(DataPosition())
    for position, _, _ in stream:
        waited = time.perf_counter() - started
        if last is None:
            first = waited
        else:
            longest = max(longest, waited)
            ends += position[:2] != last
        last = position[:2]
        if ends > 2 or (ends == 2 and position.index > 3):  # small windows have fewer batches
            break
        time.sleep(STEP)
        started = time.perf_counter()
    stream.close()
    batches.close()
    return first, longest


def planning_time(windows: Windows, epoch: int) -> float:
    """The seconds to plan the first window of an epoch in this process."""
    started = time.perf_counter()
    windows.plan(epoch, 0)
    return time.perf_counter() - started


def define_flags() -> None:
    flags.DEFINE_list("pairs", "30000,1000000,10000000", "Numbers of pairs.")
    define_path("directory", "", "Where the store is written, for the time of the run.")


if __name__ == "__main__":
    run_command(define_flags, main)
