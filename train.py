"""Train: config → pairs → packed batches → pmapped step → metrics → checkpoint: the loop.

Every field of model/config.py, data/config.py and storage/config.py is a flag, after --config:
--config.model.num_layers=2, --config.data.corpus=text:a.de,a.en, --config.training.seed=1.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import jax
import optax
from absl import flags
from ml_collections import config_flags

from data.batches import Batches, DataPosition, batch_pairs
from decoding.translator import Translator
from interop.models import load_params
from model.transformer import Transformer
from runtime import processes
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.durations import format_duration
from runtime.errors import CONFIGURATION, DATA, OUTPUT, UserError
from runtime.path_flags import define_path
from runtime.signals import StopFlag, Stopped
from storage.config import Config, unknown_field
from storage.reader import Reader
from storage.run import Run, data_changed, flat
from storage.saving import Checkpoints, forecast
from training.dry_run import dry_run
from training.evaluate import Evaluator
from training.failure import explained
from training.inputs import Data, prepare_data, read_corpora
from training.memory import check_state, checked
from training.optimizer import learning_rate_schedule, make_optimizer
from training.profile import profiled
from training.progress import Progress
from training.report import announce, print_results
from training.step import (
    TrainState,
    init_state,
    make_train_step,
    pmap_eval_step,
    pmap_train_step,
    split_rows,
    start_from,
)


def train(config: Config, run: Run, data: Data, stop: StopFlag) -> None:
    """Train to the end, or from where the run stopped; writes checkpoints, metrics and scores.

    Raises Stopped, when all is saved, where `stop` asks for it.
    """
    stop.defer()
    devices = jax.device_count()  # the backend starts: all processes meet before any waits alone
    training = config.training
    model = Transformer(config.model)
    optimizer = make_optimizer(training, config.model.d_model)
    shape = config.rows_per_batch, config.data.source_length, config.data.target_length
    batches = Batches(data.train, *shape, training.seed, config.special)
    translator = Translator([config.model], data.tokenizers, config.decoding)
    translator.engine.poll = stop.poll
    eval_step = stop.polled(pmap_eval_step(model, training))
    evaluator = Evaluator(config, run, data.valid, eval_step, translator)
    checkpoints = Checkpoints(run.path, training.keep, training.checkpoint_every, run.log)
    fresh = partial(init_state, model, optimizer, training)
    check_state(jax.eval_shape(fresh), config)
    state, position = begin(fresh, checkpoints, evaluator, config, run, data)
    step = saved_step = started = int(state.step)
    complete = checkpoints.complete
    stream = batches.iterate(position)
    # The first plan takes seconds for a large corpus.
    if stopped_by := stop.agreed_signal(stream.ready):
        raise Stopped(stopped_by)
    announce(config, run, batches, position.epoch)
    said, fits = forecast(run.path, state, training.keep)
    run.log(said if fits else f"warning: {said}")

    def save() -> None:
        facts = {**position._asdict(), **evaluator.memory, "files": data.files}
        processes.run_on_first("the checkpoint", checkpoints.save, state, facts)

    def evaluate_if_due() -> None:  # a stop leaves it for the next start
        due = step % training.eval_every == 0 or step == training.num_steps
        if step > 0 and due and evaluator.judged < step:
            with suppress(Stopped):
                evaluator.judge(step, step, state.judged)

    def places(taken: DataPosition) -> list[str]:
        pairs = batch_pairs(batches.plan(taken.epoch), taken.index, config.rows_per_batch)
        return data.places(taken.epoch, pairs)

    train_step = pmap_train_step(make_train_step(model, optimizer, training))
    train_step = checked(train_step, config)
    train_step = profiled(train_step, training.profile, run.path / "profile", step)
    schedule = learning_rate_schedule(training, config.model.d_model)
    progress = Progress(run, training, schedule, step, places)
    if not complete:
        evaluate_if_due()
    while step < training.num_steps and not (
        evaluator.exhausted or stop.agreed_signal(stream.ready)
    ):
        if step == started > 0:
            processes.run_on_first("the first step", checkpoints.goes_on, evaluator.best)
            complete = False
        taken, batch, position = next(stream)
        rows = processes.local_part(split_rows(batch, devices, training.accumulate))
        state, metrics = train_step(state, rows)
        step += 1
        progress.after(step, metrics, taken)
        evaluate_if_due()
        if step % training.checkpoint_every == 0 and step < training.num_steps:
            try:
                save()
                saved_step = step
            except UserError as error:
                if error.code != OUTPUT:
                    raise
                evaluator.take_back(step)
                run.log(f"warning: {error}; training goes on and will try again")
            progress.restart()
    stream.close()
    if saved_step < step:
        save()
    if stopped_by := stop.agreed_signal():
        raise Stopped(stopped_by)
    if complete:
        run.log(f"already complete at step {step}")
    else:
        finish(step, checkpoints, evaluator)
    checkpoints.close()
    translator.use(load_params(run.path, "best"))
    print_results(run, data, translator)


def begin(
    fresh: Callable[[], TrainState],
    checkpoints: Checkpoints,
    evaluator: Evaluator,
    config: Config,
    run: Run,
    data: Data,
) -> tuple[TrainState, DataPosition]:
    """The state and the place in the data to go on from: of the newest checkpoint, or new ones.

    Of several processes all begin alike; raises UserError where they cannot.
    """
    with processes.first_process_first("the checkpoint"):
        restored = checkpoints.restore(jax.eval_shape(fresh))
    if restored:
        state, saved = restored
        position = resumed_position(saved, data, evaluator, run, config)
        run.log(f"resumed at step {int(state.step)}")
    else:
        state, position = fresh(), DataPosition()
        if config.training.init_from:
            params = load_params(Path(config.training.init_from).expanduser(), "best")
            state = start_from(state, params)
            run.log(f"started from the parameters of {config.training.init_from}")
    step = int(state.step)
    if processes.count() > 1:
        norm = float(jax.jit(optax.global_norm)(state.params))
        processes.check_agreement(
            {"devices": jax.local_device_count(), "step": step, "parameters": norm}
        )
    run.go_on_from(step)
    return state, position


def resumed_position(
    saved: dict, data: Data, evaluator: Evaluator, run: Run, config: Config
) -> DataPosition:
    """The position in the data to resume from, and `evaluator` as it was.

    Changed validation data resets what was best, changed training data the position. Raises
    UserError(DATA) for changed training data without training.allow_data_change.
    """
    evaluator.recall(saved)
    if saved["files"].get("valid") != data.files.get("valid"):
        run.log("warning: the validation data has changed: what was best so far is forgotten")
        evaluator.forget()
    before, now = saved["files"]["train"], data.files["train"]
    if before == now:
        return DataPosition(saved["epoch"], saved["index"])
    if not config.training.allow_data_change:  # run.json was missing or damaged
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        raise UserError(DATA, data_changed(changed))
    run.log("warning: the training data has changed: it is read from its beginning, epoch 0")
    return DataPosition()


def finish(step: int, checkpoints: Checkpoints, evaluator: Evaluator) -> None:
    """Average the last checkpoints, judge that too and save it: then the training is complete."""
    average = checkpoints.average()
    evaluator.judge("average", step, average)
    processes.run_on_first("the average", checkpoints.save_average, average, evaluator.best)


def main() -> None:
    f = flags.FLAGS
    config, file = f.config, f["config"].config_filename
    if not isinstance(config, Config):
        if not Path(file).is_file():
            raise UserError(CONFIGURATION, f"--config={file} does not exist")
        raise UserError(CONFIGURATION, f"--config={file} gives no Config of training.config")
    config.validate()
    path = Path(f.workdir or f"runs/{Path(file).stem}").expanduser().absolute()
    if f.dry_run:
        return dry_run(config, path, f.overwrite, f.compilation_cache)
    started = time.perf_counter()
    processes.connect(f)
    run, stop = (Run if processes.is_first() else Reader)(path), StopFlag()
    try:
        if not f.overwrite:
            run.adopt(config)
        run.log(f"run: {run.path}")
        corpora = read_corpora(config, run)
        data = prepare_data(config, run, corpora, f.overwrite)
        read = (corpus.fingerprints for corpus in corpora.values() if corpus)
        fingerprints = dict(item for one in read for item in one.items())
        run.describe(config, fingerprints)
        processes.check_agreement(flat(asdict(config)) | fingerprints)
        prepare_jax(f.compilation_cache, deterministic=config.training.deterministic)
        with explained(config, run):
            train(config, run, data, stop)
        run.log(f"done in {format_duration(time.perf_counter() - started)}")
    except Stopped as stopped:
        run.log(f"{stopped}; the same command goes on")
        if not stop.deferred:
            processes.stop_all_processes(128 + stopped.signal, str(stopped))
        sys.exit(128 + stopped.signal)
    except UserError as error:
        run.note(f"error: {error}")
        raise
    finally:
        run.close()


def define_flags() -> None:
    config_flags.DEFINE_config_file(
        "config",
        str(Path(__file__).parent / "configs" / "korean_english.py"),
        "The run: a Python file with get_config(); it is executed.",
    )
    define_path("workdir", "", "The run directory; runs/NAME of the config by default.")
    flags.DEFINE_bool("overwrite", False, "Begin anew where the run directory holds a run.")
    flags.DEFINE_bool(
        "dry_run", False, "Check everything, say what it takes, do one step, keep nothing."
    )
    processes.define_flags()


if __name__ == "__main__":
    run_command(define_flags, main, unknown_field)
