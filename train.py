"""Train a Transformer: config → run directory → data → trainer → results.

Every field of the config (storage/config.py) is a flag, after --config:
--config.model.num_layers=2, --config.data.corpus=text:a.de,a.en, --config.training.seed=1.
"""

import sys
import time
from dataclasses import asdict
from pathlib import Path

import jax
from absl import flags
from ml_collections import config_flags

from decoding.translator import Translator
from interop.models import load_params
from runtime import processes
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.durations import format_duration
from runtime.errors import CONFIGURATION, UserError
from runtime.path_flags import define_path
from runtime.signals import StopFlag, Stopped
from storage.config import Config, unknown_field
from storage.reader import ReadOnlyRun
from storage.run import Run, flatten
from training.dry_run import dry_run
from training.failure import explain_failure
from training.inputs import Data, encode_corpora, read_corpora
from training.parameters import check_freeze
from training.report import print_results
from training.trainer import Trainer
from training.vocabulary import find_tokenizers, set_vocabulary


def main() -> None:
    f = flags.FLAGS
    config = parsed_config(f)
    path = Path(f.workdir or f"runs/{Path(f['config'].config_filename).stem}")
    path = path.expanduser().absolute()
    if f.dry_run:
        return dry_run(config, path, f.overwrite, f.compilation_cache)
    started = time.perf_counter()
    processes.connect(f)
    run, stop = (Run if processes.is_first() else ReadOnlyRun)(path), StopFlag()
    try:
        if not f.overwrite:
            run.resume_config(config)
        run.log(f"run: {run.path}")
        data = prepare_data(config, run, f.overwrite)
        run.describe(config, data.file_hashes)
        processes.check_agreement(flatten(asdict(config)) | data.file_hashes)
        prepare_jax(f.compilation_cache, deterministic=config.training.deterministic)
        with explain_failure(config, run):
            train(config, run, data, stop)
        run.log(f"done in {format_duration(time.perf_counter() - started)}")
    except Stopped as stopped:
        run.log(f"{stopped}; run the same command to resume")
        if not stop.deferred:
            processes.stop_all_processes(128 + stopped.signal, str(stopped))
        sys.exit(128 + stopped.signal)
    except UserError as error:
        run.note(f"error: {error}")
        raise
    finally:
        run.close()


def parsed_config(f: flags.FlagValues) -> Config:
    """The config of --config and its overrides. Raises UserError(CONFIGURATION) if invalid."""
    config, file = f.config, f["config"].config_filename
    if not isinstance(config, Config):
        if not Path(file).is_file():
            raise UserError(
                CONFIGURATION, f"--config={file} does not exist: expected a Python file"
            )
        raise UserError(
            CONFIGURATION,
            f"get_config() of --config={file} must return a storage.config.Config, "
            f"got {type(config).__name__}",
        )
    config.validate()
    return config


def prepare_data(config: Config, run: Run, overwrite: bool) -> Data:
    """Read the corpora, load or train the vocabulary, and encode.

    `overwrite` deletes the previous run once there is a vocabulary: a misspelled path or an
    unusable corpus deletes nothing.
    """
    corpora = read_corpora(config, run)
    with processes.first_process_first("the vocabulary"):
        tokenizers = find_tokenizers(config, run, corpora["train"])
        check_freeze(config)
        if overwrite:
            run.clear()
        if not run.resumed:
            run.save_vocabulary(tokenizers)
    set_vocabulary(config, tokenizers)
    return encode_corpora(config, run, corpora, tokenizers)


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
    config_flags.DEFINE_config_file(
        "config",
        str(Path(__file__).parent / "configs" / "korean_english.py"),
        "A Python file with a function get_config(). The file is executed.",
    )
    define_path("workdir", "", "The run directory; default: runs/NAME of the config file.")
    flags.DEFINE_bool("overwrite", False, "Delete the run in the run directory and start over.")
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Read all data, report memory and disk space, do one step, and keep nothing.",
    )
    processes.define_flags()


if __name__ == "__main__":
    run_command(define_flags, main, unknown_field)
