"""Benchmark: start, memory and disk for training data of different sizes.

    python benchmarks/corpus_size.py --source=train.en.gz --target=train.de.gz \\
        [--pairs=10000,1000000] [--directory=DIR] [--root=OTHER_CHECKOUT]
The lines are repeated with a number appended to each, up to the given numbers of pairs. For each
size, after a first run that fills the compilation cache: `prepare_corpus.py` into an empty cache,
then `train.py` of a tiny model, STEPS steps, with the prepared corpus. `--root` measures another
checkout, which may have no prepare_corpus.py. Prints a Markdown table; recorded in
benchmarks/corpus_size.md.

Peak memory is that of the largest process of each kind (VmHWM of /proc), which includes pages of
mapped files.
"""

import itertools
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.parts.variants import peak_memory
from seq2seq.runtime.command import run_command
from seq2seq.runtime.lines import file_lines
from seq2seq.runtime.path_flags import define_path

STEPS = 50
MEGABYTE = 1 << 20
FIELDS = {
    "model.d_model": 64,
    "model.d_ff": 128,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "model.max_length": 64,
    "data.source_length": 64,
    "data.target_length": 64,
    "data.vocab_size": 4000,
    "training.num_steps": STEPS,
    "training.tokens_per_batch": 8192,
    "training.log_every": 10,
    "training.eval_every": 1000,
    "training.checkpoint_every": 1000,
    "training.keep": 1,
}


class Measured(NamedTuple):
    """One command: durations in seconds, memory in bytes."""

    total: float
    first_step: float
    memory: int  # of the command's own process
    worker_memory: int  # of the largest process that it has started


def main() -> None:
    f = flags.FLAGS
    root = Path(f.root or Path(__file__).parent.parent).absolute()
    with tempfile.TemporaryDirectory(dir=f.directory or None) as directory:
        print(
            "| pairs | preparation, s | memory, MB | its worker, MB | first step, s | memory, MB | "
            "its worker, MB | disk, bytes/pair |\n|---|---|---|---|---|---|---|---|"
        )
        for pairs in map(int, f.pairs):
            print(row(pairs, root, Path(directory), f.source, f.target), flush=True)


def row(pairs: int, root: Path, directory: Path, source: str, target: str) -> str:
    """The row of the table for one number of pairs."""
    cache = directory / "cache"
    files = [directory / f"{pairs}.{side}" for side in ("source", "target")]
    for file, original in zip(files, (source, target), strict=True):
        write_numbered(file, original, pairs)
    options = [f"--config.{name}={value}" for name, value in FIELDS.items()]
    options.append(f"--config.data.corpus=text:{files[0]},{files[1]}")
    prepare, prepared, disk = root / "scripts" / "prepare_corpus.py", None, 0
    if prepare.exists():
        options.append(f"--corpus_cache={cache}")
        prepared = measured([prepare, *options])
        disk = sum(path.stat().st_size for path in cache.rglob("*.npy"))
    train = [root / "train.py", *options, f"--compilation_cache={directory / 'programs'}"]
    run = directory / "run"
    for _ in range(2):  # the first one fills the compilation cache
        trained = measured([*train, f"--workdir={run}"])
        shutil.rmtree(run)
    shutil.rmtree(cache, ignore_errors=True)
    for file in files:
        file.unlink()
    preparation = "– | – | –"
    if prepared:
        memory = megabytes(prepared.memory), megabytes(prepared.worker_memory)
        preparation = f"{prepared.total:.1f} | {memory[0]} | {memory[1]}"
    return (
        f"| {pairs:,} | {preparation} | {trained.first_step:.1f} | {megabytes(trained.memory)} | "
        f"{megabytes(trained.worker_memory)} | {disk / pairs:.0f} |"
    )


def write_numbered(path: Path, original: str, count: int) -> None:
    """Write `count` lines: those of a file, repeated, each with a number appended."""
    lines = list(file_lines(original))
    with open(path, "wb") as file:
        for number, line in zip(range(count), itertools.cycle(lines)):  # noqa: B905 – endless
            file.write(b"%b %d\n" % (line, number))


def measured(words: list) -> Measured:
    """Run a Python command to its end; RuntimeError with its last lines if it fails."""
    started, first_step, lines = time.perf_counter(), 0.0, []
    command = [sys.executable, *map(str, words)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    memory = [0, 0]
    watcher = threading.Thread(target=watch_memory, args=(process, memory), daemon=True)
    watcher.start()
    for line in process.stderr:
        lines.append(line)
        if "first step after" in line:
            first_step = time.perf_counter() - started
    if process.wait():
        raise RuntimeError(f"{' '.join(command)}: {''.join(lines[-3:])}")
    watcher.join()
    return Measured(time.perf_counter() - started, first_step, *memory)


def watch_memory(process: subprocess.Popen, memory: list[int]) -> None:
    """Record the peak memory of a process, and the largest one of its descendants."""
    while process.poll() is None:
        memory[0] = max(memory[0], peak_memory(process.pid))
        for pid in descendants(process.pid):
            memory[1] = max(memory[1], peak_memory(pid))
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """The processes that a process and its descendants have started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return []
    return children + [inner for child in children for inner in descendants(child)]


def megabytes(size: int) -> str:
    return f"{size / MEGABYTE:,.0f}"


def define_flags() -> None:
    define_path("source", None, "A text file of source sentences.", required=True)
    define_path("target", None, "Their translations.", required=True)
    define_path("directory", "", "Where texts and caches are written, for the time of the run.")
    define_path("root", "", "The checkout to measure; default: that of this file.")
    flags.DEFINE_list("pairs", "10000,30000,1000000", "Numbers of pairs.")


if __name__ == "__main__":
    run_command(define_flags, main)
