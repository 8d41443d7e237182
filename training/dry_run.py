"""A dry run: what a training would take of parameters, memory and disk, and one step of it.

It reads the first pairs of each corpus only, and works in a temporary directory.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from data.batches import Batches, DataPosition
from data.corpora import read_split
from data.errors import OUTPUT, UserError
from model.transformer import Transformer
from training.command import prepare_jax
from training.config import Config
from training.failure import explained
from training.inputs import prepare_data
from training.optimizer import make_optimizer
from training.report import announce
from training.run import Run
from training.saving import forecast, megabytes, num_bytes
from training.step import init_state, make_train_step, pmap_train_step, split_rows

HEAD = 10_000  # pairs of each corpus


def dry_run(config: Config, path: Path, overwrite: bool, compilation_cache: str) -> None:
    """What `train.py` would do with the run at `path` until its first step is done.

    Raises UserError as training.
    """
    check_place(path)
    with scratch(path, overwrite) as run:
        run.adopt(config)
        run.log(f"dry run of {path}: the first {HEAD:,} pairs of each corpus")
        corpora = {split: read_split(config.data, split, HEAD)
                   for split in ("train", "valid", "test")}
        data = prepare_data(config, run, corpora)
        partial = sum(corpora["train"].dropped.values()) + len(corpora["train"].source) >= HEAD
        known = (path / "config.json").exists() or config.training.init_from
        if partial and not known:  # what all the data will fill
            size = config.data.vocab_size
            config.model.source_vocab_size = size
            config.model.target_vocab_size = size if config.data.joint_vocab else (
                config.data.target_vocab_size or size)
            run.log("more follow: reckoned with as large a vocabulary as config.data allows; an "
                    "epoch below is that of the first pairs")
        prepare_jax(compilation_cache, deterministic=config.training.deterministic)
        shape = config.rows_per_batch, config.data.source_length, config.data.target_length
        batches = Batches(data.train, *shape, config.training.seed, config.special)
        announce(config, run, batches, 0)
        with explained(config, run):
            one_step(config, run, batches, path)
        run.log("dry run: all is well, nothing was kept")


@contextmanager
def scratch(path: Path, overwrite: bool) -> Iterator[Run]:
    """A run in a temporary directory that begins as the one at `path` would."""
    with TemporaryDirectory(prefix="dry_run_") as directory:
        if (path / "config.json").exists() and not overwrite:
            shutil.copy(path / "config.json", directory)
            if (path / "vocab").is_dir():
                shutil.copytree(path / "vocab", Path(directory, "vocab"))
        run = Run(Path(directory))
        try:
            yield run
        except UserError as error:  # of the run that this one stands for
            raise UserError(error.code, str(error).replace(str(run.path), str(path))) from error
        finally:
            run.close()


def one_step(config: Config, run: Run, batches: Batches, path: Path) -> None:
    """Make the state, see whether its checkpoints fit onto the disk, compile the step, take it."""
    model, optimizer = Transformer(config.model), make_optimizer(
        config.training, config.model.d_model)
    state = init_state(model, optimizer, config.training)
    said, fits = forecast(path, state, config.training.keep)
    if not fits:
        raise UserError(OUTPUT, f"{said}; lower training.keep or choose another --workdir")
    run.log(said)
    batch = batches[DataPosition()]
    run.log(f"one batch: {batch.target.size:,} target tokens, "
            f"{int((batch.target_segments > 0).sum()):,} of them no padding")
    devices = jax.local_device_count()
    batch = split_rows(batch, devices, config.training.accumulate)
    step = pmap_train_step(make_train_step(model, optimizer, config.training))
    started = time.perf_counter()
    compiled = step.lower(state, batch).compile()
    run.log(f"compiled in {time.perf_counter() - started:.1f} s")
    memory = compiled.memory_analysis()
    if memory:
        inside = memory.argument_size_in_bytes + memory.output_size_in_bytes
        inside += memory.temp_size_in_bytes - memory.alias_size_in_bytes
        run.log(f"memory of a step on each device: {megabytes(inside)}, of which "
                f"{megabytes(num_bytes(state))} parameters and optimizer, "
                f"{megabytes(memory.temp_size_in_bytes)} activations and gradients; "
                f"there are {available_memory(devices)}")
    started = time.perf_counter()
    _, metrics = jax.block_until_ready(compiled(state, batch))
    run.log(f"one step: {time.perf_counter() - started:.2f} s, loss {float(metrics['loss']):.3f}, "
            f"gradient norm {float(metrics['gradient_norm']):.3f}")


def check_place(path: Path) -> None:
    """UserError(OUTPUT) if a run directory could not be made here."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(OUTPUT, f"cannot write the run directory {path} in {there}; choose another "
                        "--workdir")


def available_memory(devices: int) -> str:
    """What a device has in all, or what the host's devices share."""
    if limit := (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"):
        return megabytes(limit)
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{megabytes(pages)} free for {devices} of them"
