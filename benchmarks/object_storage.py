"""Benchmark: a run and a corpus in object storage, on an emulator of S3, against a local disk.

    python benchmarks/object_storage.py [--config=base] [--delay=5]
Needs moto (pip install -e '.[test]'). The emulator is another process on this machine, so its own
time is contained in the figures. Prints Markdown tables; recorded in benchmarks/object_storage.md:
what a training waits for saves and uploads, the seconds to resume a run of the config from an empty
disk, the memory of its upload, and the seconds to read a corpus of 100 MB.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.parts.variants import peak_memory
from seq2seq.cli.command import run_command
from seq2seq.configs import base, big, small
from seq2seq.files import remote
from seq2seq.files.lines import raw_lines
from seq2seq.model.kinds import make_model
from seq2seq.runtime.paths import working_copy
from seq2seq.storage.checkpoints import Checkpoints
from seq2seq.storage.replicas.replica import Replica
from seq2seq.training.compile_for import with_vocabulary_sizes
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.step import TrainState, init_state

CONFIGS = {"small": small, "base": base, "big": big}
TRAINING = (
    "--config=korean_english --config.training.num_steps=50 --config.training.warmup_steps=10 "
    "--config.training.checkpoint_every=10 --config.training.eval_every=1000 "
    "--config.training.tokens_per_batch=2048 --config.training.eval_sentences=8"
).split()
# train.py that prints what it waits for: the previous save before the next one, and uploads.
WAITS = """
import runpy, sys, time
from seq2seq.storage.replicas.replica import Replica
from seq2seq.training.trainer import Trainer
waited = {{"saves": 0.0, "uploads": 0.0}}
def timed(owner, name, what):
    function = getattr(owner, name)
    def call(*arguments):
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            waited[what] += time.perf_counter() - start
    setattr(owner, name, call)
timed(Trainer, "_finish_save", "saves")
timed(Replica, "start_upload", "uploads")
mirror = Replica._mirror
def slow(self, names):
    time.sleep({delay})
    mirror(self, names)
Replica._mirror = slow
end = Trainer._complete
def complete(self):
    print("waited", waited["saves"], waited["uploads"], "steps", self.stopwatch.seconds)
    end(self)
Trainer._complete = complete
sys.argv[0] = {train!r}
runpy.run_path({train!r}, run_name="__main__")
"""


# moto, which otherwise waits 40 ms for the acknowledgement of the headers of each answer.
SERVER = """
import socketserver, sys
socketserver.StreamRequestHandler.disable_nagle_algorithm = True
from moto.server import main
main(sys.argv[1:])
"""


@contextmanager
def emulator() -> Iterator[str]:
    """The URL of a bucket in an emulator of S3."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    command = [sys.executable, "-c", SERVER, "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    finally:
        process.kill()
        process.wait()


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def forget_peak() -> None:
    """Start the peak memory of this process anew."""
    Path("/proc/self/clear_refs").write_text("5")


def table(header: list[str], rows: list[list[str]]) -> None:
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def training_waits(bucket: str, directory: Path, delay: float) -> None:
    """50 steps with five saves, local and remote, two rounds."""
    script, rows = directory / "waits.py", []
    train = str(Path(__file__).parent.parent / "train.py")
    for round_ in (0, 1, 2):  # the first one compiles
        for name, path, slow in (
            ("local", directory / f"local{round_}", 0.0),
            ("remote", f"{bucket}/run{round_}", 0.0),
            (f"remote, each upload {delay:g} s later", f"{bucket}/slow{round_}", delay),
        ):
            script.write_text(WAITS.format(delay=slow, train=train))
            command = [sys.executable, script, *TRAINING, f"--workdir={path}"]
            environment = {**os.environ, "PYTHONPATH": str(Path(train).parent)}
            done = subprocess.run(
                [*command, f"--local_dir={directory / 'copies'}"],
                env=environment, capture_output=True, text=True, check=True,
            )  # fmt: skip
            waited = re.search(r"waited (\S+) (\S+) steps (\S+)", done.stdout)
            if round_:
                rows.append([name, str(round_), *(f"{float(x):.3f}" for x in waited.groups())])
    table(["50 steps, 5 saves", "round", "for saves, s", "for uploads, s", "in all, s"], rows)


def resumption(bucket: str, directory: Path, name: str) -> None:
    """A checkpoint of a config: upload, and download and restoration on an empty disk."""
    config = with_vocabulary_sizes(CONFIGS[name].get_config())
    model = make_model(config.model)
    optimizer = make_optimizer(config.training, config.model.d_model)
    make = partial(init_state, model, optimizer, config.training)
    run, url = directory / "run", f"{bucket}/resumed"
    run.mkdir()
    (run / "config.json").write_text("{}")
    # As after training: the moments of Adam are not zero, which would be compressed.
    save(jax.tree.map(partial(filled, jax.random.key(0)), make()), run)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / 1e6
    replica = Replica(url, run, print)
    replica.start(overwrite=False)
    forget_peak()
    before = peak_memory()
    uploading = seconds(replica.upload)
    memory = (peak_memory() - before) // 10**6
    replica.close()
    copy = working_copy(url, str(directory / "copies"))
    copy.mkdir(parents=True)
    replica = Replica(url, copy, print)
    downloading = seconds(partial(replica.start, False))
    replica.close()
    like = jax.eval_shape(make)
    restored = [seconds(partial(restore, like, path)) for path in (copy, run)]
    row = [name, f"{size:,.0f} MB", *(f"{s:.1f}" for s in (uploading, downloading, *restored))]
    table(
        ["state", "size", "upload, s", "download, s", "restoration, s", "of the local run, s",
         "more memory in the upload, MB"],
        [[*row, str(memory)]],
    )  # fmt: skip


def filled(key: jax.Array, x: jax.Array) -> jax.Array:
    """Random numbers in place of an array of float32."""
    return jax.random.normal(key, x.shape) if x.dtype == jax.numpy.float32 and x.ndim else x


def save(state: TrainState, run: Path) -> None:
    checkpoints = Checkpoints(run, 1, 1, print)
    checkpoints.start_save(state, {"best": {}})
    checkpoints.wait()
    checkpoints.close()


def restore(like: TrainState, run: Path) -> None:
    checkpoints = Checkpoints(run, 1, 1, print)
    checkpoints.restore(like)
    checkpoints.close()


def corpus(bucket: str, directory: Path) -> None:
    """All lines of a file of 100 MB, three alternating rounds."""
    path, url = directory / "corpus.txt", f"{bucket}/corpus.txt"
    lines = (f"{n} a sentence of a corpus, of {n % 97} words\n" for n in range(2_400_000))
    path.write_text("".join(lines))
    remote.upload(path, url)
    sides, rows = {"local": str(path), "remote": url}, []
    for round_ in range(3):
        times = [seconds(partial(read_all, name)) for name in sides.values()]
        size = f"{path.stat().st_size / 1e6:.0f} MB"
        rows.append([size, str(round_ + 1), *(f"{t:.2f}" for t in times)])
    table(["corpus", "round", *(f"{side}, s" for side in sides)], rows)


def read_all(name: str) -> None:
    for _ in raw_lines(name):
        pass


def main() -> None:
    f = flags.FLAGS
    directory = Path(tempfile.mkdtemp())
    try:
        with emulator() as bucket:
            corpus(bucket, directory)
            resumption(bucket, directory, f.config)
            training_waits(bucket, directory, f.delay)
    finally:
        shutil.rmtree(directory)


def define_flags() -> None:
    flags.DEFINE_enum("config", "base", sorted(CONFIGS), "The config whose state is resumed.")
    flags.DEFINE_float("delay", 5.0, "Seconds by which each upload is delayed.")


if __name__ == "__main__":
    run_command(define_flags, main)
