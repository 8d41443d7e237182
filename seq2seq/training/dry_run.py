"""A dry run: read all data, check memory and disk space, do one step, change no run directory."""

import os
import time
from contextlib import closing
from pathlib import Path

import jax
from jax.stages import Wrapped

from seq2seq.config.model_parallel import check_model_parallel
from seq2seq.config.tree import Config
from seq2seq.data.batching.batches import Batches, DataPosition
from seq2seq.data.batching.packing import Batch
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.model.kinds import make_model
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.memory import free_memory
from seq2seq.runtime.streams import note
from seq2seq.storage.deletion import check_deletable
from seq2seq.storage.newest_step import newest_intact_step, stored_data
from seq2seq.storage.resume_policy import check_same_data
from seq2seq.storage.run import Run
from seq2seq.storage.run_json import intact_facts
from seq2seq.storage.sizes import disk_forecast, megabytes
from seq2seq.training.inputs import Data, encode_corpora, open_corpora, training_batches
from seq2seq.training.memory_check import (
    check_state,
    check_step,
    explain_failure,
    step_memory,
    stored_bytes,
)
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import parallel_train_step, place_rows
from seq2seq.training.progress import announce
from seq2seq.training.resume import initial_params, restored_position
from seq2seq.training.step import TrainState, init_state, make_train_step, state_shapes
from seq2seq.training.vocabulary import find_tokenizers


def dry_run(
    config: Config,
    path: Path,
    cache: CorpusCache | None,
    overwrite: bool,
    compilation_cache: str,
) -> None:
    """Do the same as training at `path` up to the first step; raise the same UserErrors. Of a run
    in object storage only the working copy at `path` is read."""
    check_writable(path)
    run = DryRun(path)
    if not overwrite:
        config = run.resume_config(config)
    else:
        check_deletable(run.path)
    run.log(f"dry run of {path}: reads all data")
    corpora = open_corpora(config, run)
    config, tokenizers = find_tokenizers(config, run, corpora.train, cache)
    data = encode_corpora(config, run, corpora, tokenizers, cache)
    resumes = False
    if not overwrite:
        # If run.json is damaged, the checkpoint's record is compared.
        check_same_data(intact_facts(run.path / "run.json"), data.file_hashes, config)
        resumes = check_checkpoint(config, run, data)
    prepare_jax(compilation_cache, deterministic=config.training.deterministic)
    with (
        closing(training_batches(config, data)) as batches,
        explain_failure(config, run),
    ):
        announce(config, run, batches, DataPosition())
        do_one_step(config, run, batches, resumes)
    run.log("dry run: successful, nothing was kept but caches")


class DryRun(Run):
    """A run directory that is only read; the log goes to stderr."""

    def __init__(self, path: Path):
        super().__init__(path, is_dry=True)

    def log(self, line: str) -> None:
        note(line)


def check_checkpoint(config: Config, run: DryRun, data: Data) -> bool:
    """Whether there is an intact checkpoint. Raises the UserErrors of a training that resumes from
    the newest one."""
    step, _ = newest_intact_step(run.path)
    if step is not None:
        restored_position(stored_data(run.path, step), config, run, data)
    return step is not None


def do_one_step(config: Config, run: Run, batches: Batches, resumes: bool) -> None:
    """Make the state, check memory and disk space, and do one step. `resumes`: the parameters of
    training.init_from, which may not exist any more, are not used."""
    devices, model = jax.local_device_count(), make_model(config.model)
    model_parallel = config.training.model_parallel
    check_model_parallel("training.model_parallel", model_parallel, config.model, devices)
    optimizer = make_optimizer(config.training, config.model.d_model, config.model.weights_dtype)
    check_state(state_shapes(model, optimizer, config.training), config)
    params = None if resumes else initial_params(config, run)
    state = init_state(model, optimizer, config.training, params)
    message, fits = disk_forecast(run.path, state, config.training.keep)
    if not fits:
        raise UserError(OUTPUT, f"{message}; lower training.keep or choose another --workdir")
    run.log(message)
    batch = batches[DataPosition()]
    run.log(
        f"one batch: {batch.labels.size:,} target tokens, "
        f"{int((batch.target_segments > 0).sum()):,} without padding"
    )
    batch = place_rows(batch, config.training)
    train_step = make_train_step(model, optimizer, config.training)
    step = parallel_train_step(train_step, model_parallel)
    check_step(log_step_memory(run, step, state, batch), config)
    started = time.perf_counter()
    _, metrics = jax.block_until_ready(step(state, batch))
    run.log(
        f"one step: {time.perf_counter() - started:.2f} s, loss {float(metrics['loss']):.3f}, "
        f"gradient norm {float(metrics['gradient_norm']):.3f}"
    )


def log_step_memory(
    run: Run, step: Wrapped, state: TrainState, batch: Batch
) -> tuple[int, int] | None:
    """Compile the step, log the time and its memory, and return `step_memory`."""
    started = time.perf_counter()
    memory = step_memory(step, state, batch)
    run.log(f"compiled in {time.perf_counter() - started:.1f} s")
    if memory:
        free = free_memory()
        run.log(
            f"memory of a step on each device: {megabytes(stored_bytes(state))} parameters and "
            f"optimizer, {megabytes(memory[0])} more, of which {megabytes(memory[1])} "
            "activations and gradients; "
            + (
                "free memory is unknown"
                if free is None
                else f"{megabytes(free)} free for each of {jax.local_device_count()} devices"
            )
        )
    return memory


def check_writable(path: Path) -> None:
    """Raise UserError(OUTPUT) if a run directory could not be created at `path`."""
    parent = next(parent for parent in (path, *path.parents) if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(
            OUTPUT,
            f"cannot write the run directory {path}: {parent} is not a writable directory; "
            "choose another --workdir",
        )
