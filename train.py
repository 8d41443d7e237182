"""Train a model: config → run directory → data → trainer → results.

Every field of the config (seq2seq/config/) is a flag, after --config:
--config.model.num_layers=2, --config.data.corpus=text:a.de,a.en, --config.training.seed=1.
--help_config lists the fields. --workdir=RUN without --config resumes a run with its own config.
"""

from dataclasses import replace

import jax
from absl import flags

from seq2seq.cli import connection
from seq2seq.cli.command import run_command
from seq2seq.cli.interruption import ended_by_signals
from seq2seq.config import Config
from seq2seq.config.flag import check_new_run, config_directory, parsed_config, run_path
from seq2seq.config.help import explain_config_error, field_list
from seq2seq.data.metrics import BLEU
from seq2seq.data.tokens.corpus_cache import CorpusCache, corpus_cache
from seq2seq.decoding.translator import Translator
from seq2seq.pretrained.models import load_params
from seq2seq.runtime.control import Control
from seq2seq.runtime.device_check import check_accelerators
from seq2seq.runtime.devices import keep_freed_memory, prepare_jax
from seq2seq.runtime.signals import StopFlag
from seq2seq.storage.run import Run
from seq2seq.training import compile_for, dry_run, evaluate, inputs, resume, vocabulary
from seq2seq.training.flags import define_flags
from seq2seq.training.memory_check import explain_failure
from seq2seq.training.parts import TrainingParts
from seq2seq.training.run_session import open_run
from seq2seq.training.trainer import Trainer


def main() -> None:
    f = flags.FLAGS
    config, path = parsed_config(f), run_path(f)
    check_new_run(f)
    if f.help_config:
        return print(field_list(config))
    connection.check_process_flags(f)
    if f.compile_for:
        return compile_for.print_report(config, config_directory(f), f.compile_for)
    BLEU[config.training.bleu_tokenizer].check()  # its package may be missing
    cache = corpus_cache(f.corpus_cache)
    if f.dry_run:
        return dry_run.dry_run(config, path, cache, f.overwrite, f.compilation_cache)
    connection.connect(f)
    with ended_by_signals() as stop, open_run(path, f.workdir, stop, f.overwrite) as run:
        config, data = prepare_data(config, run, cache, f.overwrite)
        prepare_jax(f.compilation_cache, deterministic=config.training.deterministic)
        train(config, run, data, stop)


def prepare_data(
    config: Config, run: Run, cache: CorpusCache | None = None, overwrite: bool = False
) -> tuple[Config, inputs.Data]:
    """The config of a new or resumed run, with the sizes of its vocabulary, and its data.

    Nothing of an earlier run is deleted before the corpora and the vocabulary of the new one are
    known: a misspelled path deletes nothing.
    """
    if not overwrite:
        config = run.resume_config(config)  # 1
    run.log(f"run: {run.name}")
    with run.log_traceback():
        corpora = inputs.open_corpora(config, run)
        with run.first_process_first("the vocabulary"):
            config, tokenizers = vocabulary.find_tokenizers(config, run, corpora.train, cache)  # 2
            if overwrite:
                run.clear()
            if not run.resumed:
                run.save_vocabulary(tokenizers)
        data = inputs.encode_corpora(config, run, corpora, tokenizers, cache)  # 3
    run.check_and_record(config, data.file_hashes)  # 4
    resume.check_same_start(config, data)  # 5
    return config, data


def train(config: Config, run: Run, data: inputs.Data, stop: StopFlag) -> Trainer:
    """Train to the end, then print the scores and samples of the best checkpoint.

    Raises Stopped after saving a checkpoint if a signal was received.
    """
    stop.defer()
    with explain_failure(config, run):
        jax.device_count()  # starts the backend: all processes connect before one waits for another
        check_accelerators()
        trainer = resume_or_start(config, run, data, stop)
        trainer.train()
        run.share_files("the best checkpoint")
        trainer.translator.use(load_params(run.path, "best", resume.placer_of(config)))
        evaluate.print_results(run, data, trainer.translator, trainer.evaluator.bleu)
    return trainer


def resume_or_start(config: Config, run: Run, data: inputs.Data, stop: StopFlag) -> Trainer:
    """The trainer of a run before its next step.

    An existing run, whose directory is locked first (`open_run`), is resumed in this order. The
    numbers stand beside the calls, 1 to 5 in `prepare_data`:

    1. its config.json: changed fields that parameters or data depend on are refused
    2. its vocabulary, vocab/
    3. the token ids of the corpora, tokenized or cached
    4. its run.json: data files with other hashes are refused; config.json and run.json are written
    5. all processes have the same config and data
    6. checkpoints that were not saved completely are deleted (Checkpoints)
    7. the newest intact checkpoint: parameters, optimizer and random key of a step. Damaged ones
       are quarantined, and best.json is restored if it is damaged or names a lost checkpoint
    8. the best score, from the data of the checkpoint
    9. the position of the next batch in the data order, and the time of training so far
    10. metrics.jsonl, without the entries after that step and those of an evaluation that is
        repeated, and tensorboard/, without the points after that step

    A new run has none of these files: its vocabulary is made, its state is a fresh one or that of
    training.init_from.

    An evaluation that was due at that step and is not stored precedes the next step (Trainer). The
    first further step of a complete run deletes scores.json and average/ (Trainer).
    """
    control = Control(poll=stop.poll)
    decoding = replace(config.decoding, model_parallel=config.training.model_parallel)
    translator = Translator(
        [config.model], data.tokenizers, decoding, control=control, data=config.data
    )
    parts = TrainingParts(config, run, data, translator, stop)  # 6
    state, stored = resume.restore_state(parts)  # 7
    if stored is not None:
        best, sentences = parts.evaluator.best, config.training.eval_sentences
        best.restore(stored, data.files, sentences, run.log)  # 8
    position, seconds = resume.restored_position(stored, config, run, data)  # 9
    if stored is not None:
        run.log(f"resumed at step {int(state.step)}")
    trainer = Trainer(parts, state, position, seconds)
    run.open_metrics(trainer.step, trainer.recorded_steps)  # 10
    return trainer


def run() -> None:
    """The command line."""
    keep_freed_memory()
    run_command(define_flags, main, explain_config_error)


if __name__ == "__main__":
    run()
