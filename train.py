"""Train a model: config → run directory → data → trainer → results.

Every field of the config (storage/config.py) is a flag, after --config:
--config.model.num_layers=2, --config.data.corpus=text:a.de,a.en, --config.training.seed=1.
--help_config lists the fields. --workdir=RUN without --config resumes a run with its own config.
"""

import sys
import time
from dataclasses import asdict

import jax
from absl import flags

from data.corpus_cache import (
    CorpusCache,
    corpus_cache,
    define_cache_flag,
    without_damaged_stores,
)
from decoding.translator import Translator
from interop.models import load_params
from runtime import connection, processes
from runtime.command import run_command
from runtime.devices import keep_freed_memory, prepare_jax
from runtime.durations import format_duration
from runtime.errors import UserError
from runtime.path_flags import define_path
from runtime.signals import StopFlag, Stopped
from storage.config import Config
from storage.config_help import field_list, unknown_field
from storage.reader import ReadOnlyRun
from storage.run import Run, flatten
from training.config_flag import check_new_run, define_config, parsed_config, run_path
from training.dry_run import dry_run
from training.failure import explain_failure
from training.inputs import Data, encode_corpora, open_corpora
from training.parameters import check_freeze
from training.report import print_results
from training.trainer import Trainer
from training.vocabulary import find_tokenizers, set_vocabulary


def main() -> None:
    f = flags.FLAGS
    config, path = parsed_config(f), run_path(f)
    check_new_run(f)
    if f.help_config:
        return print(field_list(config))
    if f.dry_run:
        cache = corpus_cache(f.corpus_cache)
        return dry_run(config, path, cache, f.overwrite, f.compilation_cache)
    started = time.perf_counter()
    connection.connect(f)
    run, stop = (Run if processes.is_first() else ReadOnlyRun)(path), StopFlag()
    try:
        if not f.overwrite:
            run.resume_config(config)
        run.log(f"run: {run.path}")
        data = prepare_data(config, run, corpus_cache(f.corpus_cache), f.overwrite)
        run.describe(config, data.file_hashes)
        processes.check_agreement(flatten(asdict(config)) | data.file_hashes)
        prepare_jax(f.compilation_cache, deterministic=config.training.deterministic)
        with explain_failure(config, run), without_damaged_stores():
            train(config, run, data, stop)
        run.log(f"done in {format_duration(time.perf_counter() - started)}")
    except Stopped as stopped:
        run.log(f"{stopped}; run the same command to resume")
        if not stop.deferred:
            connection.stop_all_processes(128 + stopped.signal, str(stopped))
        sys.exit(128 + stopped.signal)
    except UserError as error:
        run.note(f"error: {error}")
        raise
    finally:
        run.close()


def prepare_data(config: Config, run: Run, cache: CorpusCache | None, overwrite: bool) -> Data:
    """Open the corpora, load or train the vocabulary, and encode.

    `overwrite` deletes the previous run once there is a vocabulary: a misspelled path or an
    unusable corpus deletes nothing.
    """
    corpora = open_corpora(config, run)
    with processes.first_process_first("the vocabulary"):
        tokenizers = find_tokenizers(config, run, corpora.train, cache)
        check_freeze(config)
        if overwrite:
            run.clear()
        if not run.resumed:
            run.save_vocabulary(tokenizers)
    set_vocabulary(config, tokenizers)
    return encode_corpora(config, run, corpora, tokenizers, cache)


def train(config: Config, run: Run, data: Data, stop: StopFlag) -> None:
    """Train or resume the run, then print the scores and samples of its best checkpoint.

    Raises Stopped after saving a checkpoint if `stop` was set.
    """
    stop.defer()
    jax.device_count()  # starts the backend: all processes connect before one waits for another
    translator = Translator([config.model], data.tokenizers, config.decoding)
    translator.engine.poll = stop.poll
    Trainer(config, run, data, translator, stop).train()
    translator.use(load_params(run.path, "best"))
    print_results(run, data, translator)


def define_flags() -> None:
    define_config(sys.argv)
    define_path("workdir", "", "The run directory; default: runs/NAME of the config file.")
    flags.DEFINE_bool("help_config", False, "List all config fields with their values, and exit.")
    flags.DEFINE_bool("overwrite", False, "Delete the run in the run directory and start over.")
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Read all data, report memory and disk space, do one step, and keep nothing but caches.",
    )
    define_cache_flag()
    connection.define_flags()


if __name__ == "__main__":
    keep_freed_memory()
    run_command(define_flags, main, unknown_field)
