"""A dry run: what a training needs of memory and disk, and one step of it.

It reads all data, as training does, and works in a temporary directory.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from data.batches import Batches, DataPosition
from model.transformer import Transformer
from runtime.devices import prepare_jax
from runtime.errors import OUTPUT, UserError
from runtime.memory import free_memory
from storage.config import Config
from storage.run import Run
from storage.saving import forecast, megabytes, num_bytes
from training.failure import explained
from training.inputs import prepare_data, read_corpora
from training.memory import check_state, check_step, step_memory
from training.optimizer import make_optimizer
from training.report import announce
from training.step import init_state, make_train_step, pmap_train_step, split_rows


def dry_run(config: Config, path: Path, overwrite: bool, compilation_cache: str) -> None:
    """What `train.py` would do with the run at `path` until its first step is done.

    Raises UserError as training.
    """
    check_place(path)
    with scratch(path, overwrite) as run:
        run.adopt(config)
        run.log(f"dry run of {path}: reads all data")
        data = prepare_data(config, run, read_corpora(config, run))
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
    """Make the state, check that memory and disk suffice, and take one step."""
    model = Transformer(config.model)
    optimizer = make_optimizer(config.training, config.model.d_model)
    fresh = partial(init_state, model, optimizer, config.training)
    check_state(jax.eval_shape(fresh), config)
    state = fresh()
    said, fits = forecast(path, state, config.training.keep)
    if not fits:
        raise UserError(OUTPUT, f"{said}; lower training.keep or choose another --workdir")
    run.log(said)
    batch = batches[DataPosition()]
    run.log(
        f"one batch: {batch.target.size:,} target tokens, "
        f"{int((batch.target_segments > 0).sum()):,} of them no padding"
    )
    devices = jax.local_device_count()
    batch = split_rows(batch, devices, config.training.accumulate)
    step = pmap_train_step(make_train_step(model, optimizer, config.training))
    started = time.perf_counter()
    memory = step_memory(step, state, batch)
    run.log(f"compiled in {time.perf_counter() - started:.1f} s")
    if memory:
        free = free_memory()
        run.log(
            f"memory of a step on each device: {megabytes(num_bytes(state))} parameters and "
            f"optimizer, {megabytes(memory[0])} more, of which {megabytes(memory[1])} "
            "activations and gradients; "
            + (
                "free memory is unknown"
                if free is None
                else f"{megabytes(free)} are free for each of {devices} devices"
            )
        )
    check_step(memory, config)
    started = time.perf_counter()
    _, metrics = jax.block_until_ready(step(state, batch))
    run.log(
        f"one step: {time.perf_counter() - started:.2f} s, loss {float(metrics['loss']):.3f}, "
        f"gradient norm {float(metrics['gradient_norm']):.3f}"
    )


def check_place(path: Path) -> None:
    """UserError(OUTPUT) if a run directory could not be made here."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(
            OUTPUT, f"cannot write the run directory {path} in {there}; choose another --workdir"
        )
