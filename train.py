"""Train a model: config → run directory → data → trainer → results.

Every field of the config (seq2seq/config/tree.py) is a flag, after --config:
--config.model.num_layers=2, --config.data.corpus=text:a.de,a.en, --config.training.seed=1.
--help_config lists the fields. --workdir=RUN without --config resumes a run with its own config.
"""

import sys
import time
from dataclasses import asdict

import jax
from absl import flags

from seq2seq.cli import connection
from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_local_dir, define_path
from seq2seq.compilation.targets import define_compile_for, target_of
from seq2seq.config.flag import (
    check_new_run,
    config_directory,
    define_config,
    parsed_config,
    run_path,
)
from seq2seq.config.help import explain_config_error, field_list
from seq2seq.config.tree import Config
from seq2seq.data.batching.batches import DataPosition
from seq2seq.data.tokens.corpus_cache import (
    CorpusCache,
    corpus_cache,
    define_cache_flag,
    deleting_damaged_stores,
)
from seq2seq.decoding.engine.calls import Control
from seq2seq.decoding.translator import Translator
from seq2seq.files.remote import is_remote
from seq2seq.pretrained.models import load_params
from seq2seq.runtime import processes
from seq2seq.runtime.devices import keep_freed_memory, prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.logs import format_duration
from seq2seq.runtime.signals import StopFlag, Stopped, handle_signals
from seq2seq.storage.read_only_run import ReadOnlyRun
from seq2seq.storage.run import Run, flatten
from seq2seq.training.compile_for import training_lines, with_sizes_of_run
from seq2seq.training.dry_run import dry_run
from seq2seq.training.evaluate import print_results
from seq2seq.training.inputs import prepare_data
from seq2seq.training.memory_check import explain_failure
from seq2seq.training.resume import restore_best, restore_state, restored_progress
from seq2seq.training.trainer import Trainer


def main() -> None:
    f = flags.FLAGS
    config, path = parsed_config(f), run_path(f)
    check_new_run(f)
    if f.help_config:
        return print(field_list(config))
    if (f.compile_for or f.dry_run) and (f.distributed or f.coordinator):
        raise UserError(
            CONFIGURATION,
            f"--{'compile_for' if f.compile_for else 'dry_run'} runs in one process; remove "
            "--distributed and --coordinator, and for the memory of one of N hosts divide "
            "training.tokens_per_batch by N",
        )
    connection.check_process_flags(f)
    if f.compile_for:
        target = target_of(f.compile_for)
        for line in training_lines(with_sizes_of_run(config, config_directory(f)), target):
            print(line, flush=True)
        return
    cache = corpus_cache(f.corpus_cache)
    if f.dry_run:
        return dry_run(config, path, cache, f.overwrite, f.compilation_cache)
    started = time.perf_counter()
    connection.connect(f)
    url = f.workdir if is_remote(f.workdir) else ""
    run, stop = (Run if processes.is_first() else ReadOnlyRun)(path, url), handle_signals()
    try:
        with processes.first_process_first("the start of the run"):
            run.open_replica(f.overwrite)
        trainer = resume_or_start(config, run, stop, cache, f.compilation_cache, f.overwrite)
        train(trainer)
        run.log(f"done in {format_duration(time.perf_counter() - started)}")
        processes.run_on_first("the last upload", run.finish_upload)
    except Stopped as stopped:
        # Before, the earlier run may not be deleted yet.
        changed = " without --overwrite" * (f.overwrite and stop.deferred)
        run.log(f"{stopped}; run the same command{changed} to resume")
        if stop.deferred:  # all processes stop here
            processes.run_on_first("the last upload", run.finish_upload)
        else:
            run.close()
            connection.stop_all_processes(128 + stopped.signal, str(stopped))
        sys.exit(128 + stopped.signal)
    except UserError as error:
        stop.defer()
        run.note(f"error: {error}")
        run.try_upload()
        raise
    finally:
        stop.defer()  # a signal during the exit raises nothing
        run.close()


def resume_or_start(
    config: Config,
    run: Run,
    stop: StopFlag,
    cache: CorpusCache | None,
    compilation_cache: str = "",
    overwrite: bool = False,
) -> Trainer:
    """The trainer of a run before its next step.

    The processes are connected and the run directory is locked before (`main`). An existing run is
    resumed in this order:

    1. its config.json: changed fields that parameters or data depend on are refused
    2. its vocabulary, vocab/, and with it the token ids of the corpora, tokenized or cached
    3. its run.json: data files with other hashes are refused; config.json and run.json are written
    4. all processes have the same config and data; the devices are used from here on, and
       checkpoints that were not saved completely are deleted (Trainer)
    5. the newest intact checkpoint: parameters, optimizer and random key of a step. Damaged ones
       are quarantined, and best.json is restored if it is damaged or names a lost checkpoint
    6. the best score, from the data of the checkpoint
    7. the position of the next batch in the data order, and the time of training so far
    8. metrics.jsonl, without the entries after that step and those of an evaluation that is
       repeated, and tensorboard/, without the points after that step

    An evaluation that was due at that step and is not stored precedes the next step (Trainer).
    A new run has none of these files: its vocabulary is made, its state is a fresh one or that of
    training.init_from. `overwrite` deletes a run once the vocabulary of the new one is made. The
    first further step of a complete run deletes scores.json and average/ (Trainer).
    """
    if not overwrite:
        config = run.resume_config(config)  # 1
    run.log(f"run: {run.name}")
    with run.log_traceback():
        config, data = prepare_data(config, run, cache, overwrite)  # 2
    run.check_and_record(config, data.file_hashes)  # 3
    processes.check_agreement(flatten(asdict(config)) | data.file_hashes)  # 4
    prepare_jax(compilation_cache, deterministic=config.training.deterministic)
    stop.defer()
    with explain_failure(config, run), deleting_damaged_stores():
        jax.device_count()  # starts the backend: all processes connect before one waits for another
        control = Control(poll=stop.poll)
        translator = Translator(
            [config.model], data.tokenizers, config.decoding, control=control, data=config.data
        )
        trainer = Trainer(config, run, data, translator, stop)  # 4: the checkpoints
        state, stored = restore_state(trainer.fresh_state, trainer.checkpoints, config, run)  # 5
        position, seconds = DataPosition(), 0.0
        if stored is not None:
            restore_best(trainer.evaluator.best, stored, config, run, data)  # 6
            position, seconds = restored_progress(stored, config, run, data)  # 7
            run.log(f"resumed at step {int(state.step)}")
        trainer.begin(state, position, seconds)
        run.open_metrics(trainer.step, trainer.recorded_steps)  # 8
    return trainer


def train(trainer: Trainer) -> None:
    """Train to the end, then print the scores and samples of the best checkpoint.

    Raises Stopped after saving a checkpoint if a signal was received.
    """
    run, translator = trainer.run, trainer.translator
    with explain_failure(trainer.config, run), deleting_damaged_stores():
        trainer.train()
        with processes.first_process_first("the best checkpoint"):
            run.send_files()
            run.receive_files()
        translator.use(load_params(run.path, "best"))
        print_results(run, trainer.data, translator, trainer.evaluator.bleu)


def define_flags() -> None:
    define_config(sys.argv)
    define_path(
        "workdir",
        "",
        "The run directory, local or a URL such as gs://bucket/run; default: runs/NAME of the "
        "config file.",
        remote=True,
    )
    define_local_dir()
    flags.DEFINE_bool("help_config", False, "List all config fields with their values, and exit.")
    flags.DEFINE_bool("overwrite", False, "Delete the run in the run directory and start over.")
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Read all data, report memory and disk space, do one step, and keep nothing but caches.",
    )
    define_cache_flag()
    define_compile_for()
    connection.define_flags()


def run() -> None:
    """The command line."""
    keep_freed_memory()
    run_command(define_flags, main, explain_config_error)


if __name__ == "__main__":
    run()
