"""Train: config → pairs → packed batches → pmapped step → metrics → checkpoint: the loop.

Every field of model/config.py, data/config.py and training/config.py is a flag, after --config:
--config.model.num_layers=2, --config.data.corpus=text:a.de,a.en, --config.training.seed=1.
"""

import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import jax
import optax
from absl import flags
from ml_collections import config_flags

from data.batches import Batches, DataPosition, num_batches, useful_share
from data.corpora import read_split
from data.errors import CONFIGURATION, UserError
from data.scores import bleu, exact_match, tokenized_bleu
from decoding.translator import Translator
from model.config import num_parameters
from model.transformer import Transformer
from training import hosts
from training.checkpoint import Checkpoints, load_params, read_best, write_best
from training.command import prepare_jax, run_command
from training.config import Config
from training.evaluate import Evaluator, samples, translations
from training.inputs import Data, prepare_data
from training.optimizer import learning_rate_schedule, make_optimizer
from training.progress import Progress, clock
from training.reader import Reader
from training.run import Run, flat
from training.step import (
    init_state,
    make_train_step,
    pmap_eval_step,
    pmap_train_step,
    split_rows,
    start_from,
)

FINAL_SAMPLES = 5


def train(config: Config, run: Run, data: Data) -> None:
    """Train to the end, or from where the run stopped; writes checkpoints, metrics and scores."""
    training, devices = config.training, jax.device_count()
    model = Transformer(config.model)
    optimizer = make_optimizer(training, config.model.d_model)
    shape = config.rows_per_batch, config.data.source_length, config.data.target_length
    batches = Batches(data.train, *shape, training.seed)
    translator = Translator([config.model], data.tokenizers, config.decoding)
    evaluator = Evaluator(config, run, data.valid, pmap_eval_step(model, training), translator)
    checkpoints = Checkpoints(run.path, training.keep, training.checkpoint_every)
    state, position = init_state(model, optimizer, training), DataPosition()
    with hosts.after_the_first("the checkpoint"):
        restored = checkpoints.restore(state)
    if restored:
        state, saved = restored
        position = DataPosition(saved["epoch"], saved["index"])
        evaluator.best, evaluator.without_better = saved["best"], saved["without_better"]
        run.log(f"resumed at step {int(state.step)}")
    elif training.init_from:
        params = load_params(Path(training.init_from).expanduser(), "best")
        state = start_from(state, params)
        run.log(f"started from the parameters of {training.init_from}")
    step = saved_step = started = int(state.step)
    if hosts.count() > 1:
        norm = float(jax.jit(optax.global_norm)(state.params))
        hosts.agree({"devices": jax.local_device_count(), "step": step, "parameters": norm})
    run.go_on_from(step)
    report(config, run, batches, position.epoch)

    def save() -> None:
        best = {"best": evaluator.best, "without_better": evaluator.without_better}
        data = {**position._asdict(), **best}
        hosts.by_the_first("the checkpoint", checkpoints.save, state, data)

    train_step = pmap_train_step(make_train_step(model, optimizer, training))
    schedule = learning_rate_schedule(training, config.model.d_model)
    progress, stop = Progress(run, training, schedule, step), StopFlag()
    stream = batches.iterate(position)
    while step < training.num_steps and not evaluator.exhausted and not hosts.shared(stop.signal):
        if step == started:
            hosts.by_the_first("the first step", checkpoints.drop_average)
        batch, position = next(stream)
        rows = hosts.own_part(split_rows(batch, devices, training.accumulate))
        state, metrics = train_step(state, rows)
        step += 1
        progress.after(step, metrics)
        last = step == training.num_steps
        if step % training.eval_every == 0 or last:
            evaluator.judge(step, step, state.judged)
        if step % training.checkpoint_every == 0 or last:
            save()
            saved_step = step
            progress.restart()
    stream.close()
    if saved_step < step:
        save()
    if stopped := hosts.shared(stop.signal):
        run.log(f"stopped by {stopped.name} after step {step}; the same command goes on")
        run.close()
        sys.exit(128 + stopped)
    stop.restore()
    if step == started and (run.path / "average").is_dir():
        run.log(f"already complete at step {step}")
    else:
        hosts.by_the_first("the average", checkpoints.save_average)
        evaluator.judge("average", step, load_params(run.path, "average"))
        hosts.by_the_first("the best", write_best, run.path, evaluator.best)
    checkpoints.close()
    translator.use(load_params(run.path, "best"))
    print_results(run, data, translator)


def report(config: Config, run: Run, batches: Batches, epoch: int) -> None:
    """Say what is about to happen, beginning with this epoch."""
    rows, source, target = batches.shape
    per_epoch = num_batches(batches.plan(epoch), rows)
    share = useful_share(batches.pairs(epoch), batches.plan(epoch), source, target)
    kind = jax.devices()[0].device_kind
    run.log(f"devices: {jax.device_count()} × {kind} ({jax.default_backend()})"
            + (f", {hosts.count()} processes" if hosts.count() > 1 else ""))
    run.log(f"parameters: {num_parameters(config.model):,}")
    run.log(f"batch: {rows} rows of {source} + {target} tokens, {share:.1%} useful; "
            f"{per_epoch} batches an epoch, {config.training.num_steps:,} steps")


def print_results(run: Run, data: Data, translator: Translator) -> None:
    """Held-out scores and samples of the best checkpoint, and the command to try next."""
    if data.test is not None:
        sources, references = data.test.source, data.test.target
        texts = translations(translator, sources)
    if not hosts.first():
        return
    if data.test is not None:
        print("\n".join(samples(sources, texts, references, FINAL_SAMPLES)))
        for metric in (bleu, tokenized_bleu):
            print(f"held-out {metric(texts, references)}")
        print(f"held-out exact match {exact_match(texts, references):.1f} % of {len(texts):,} "
              f"sentences (checkpoint: {read_best(run.path).get('checkpoint', 'latest')})")
    print(f"translate with: python decode.py --workdir={run.path} --input=FILE", flush=True)


class StopFlag:
    """SIGTERM and SIGINT ask the loop to stop after its step; a second one stops at once."""

    def __init__(self):
        self.signal: signal.Signals | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def _set(self, number, _):
        self.signal = signal.Signals(number)
        self.restore()

    def restore(self) -> None:
        """Give the signals their usual effect again."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    f = flags.FLAGS
    config, file = f.config, f["config"].config_filename
    if not isinstance(config, Config):
        if not Path(file).is_file():
            raise UserError(CONFIGURATION, f"--config={file} does not exist")
        raise UserError(CONFIGURATION, f"--config={file} gives no Config of training.config")
    config.validate()
    started = time.perf_counter()
    hosts.connect(f)
    run = (Run if hosts.first() else Reader)(Path(f.workdir or f"runs/{Path(file).stem}"))
    if not f.overwrite:
        run.adopt(config)
    run.log(f"run: {run.path}")
    corpora = {split: read_split(config.data, split) for split in ("train", "valid", "test")}
    if f.overwrite:
        run.clear()  # only now that the data has been read: a typo costs no run
    data = prepare_data(config, run, corpora)
    read = (corpus.fingerprints for corpus in corpora.values() if corpus)
    fingerprints = dict(item for one in read for item in one.items())
    run.describe(config, fingerprints)
    hosts.agree(flat(asdict(config)) | fingerprints)
    prepare_jax(f.compilation_cache)
    train(config, run, data)
    run.log(f"done in {clock(time.perf_counter() - started)}")
    run.close()


def define_flags() -> None:
    config_flags.DEFINE_config_file(
        "config",
        str(Path(__file__).parent / "configs" / "korean_english.py"),
        "The run: a Python file with get_config(); it is executed.",
    )
    flags.DEFINE_string("workdir", "", "The run directory; runs/NAME of the config by default.")
    flags.DEFINE_bool("overwrite", False, "Begin anew where the run directory holds a run.")
    hosts.define_flags()


if __name__ == "__main__":
    run_command(define_flags, main)
