"""Train: config → pairs → packed batches → pmapped step → metrics → checkpoint. The loop, nothing else."""

import math
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
from absl import flags
from ml_collections import config_flags

from data.batches import Batches, DataPosition, num_batches, useful_share
from data.corpora import read_split
from data.pairs import Pairs, encode_pairs
from data.text_files import Corpus
from data.tokenizer import Tokenizer, load_tokenizers, save_tokenizers, train_tokenizers
from decode import Translator
from model.config import num_parameters
from model.transformer import Transformer
from training.checkpoint import Checkpoints, load_params, write_best
from training.command import prepare_jax, run_command
from training.config import Config
from training.evaluate import held_out_loss, samples, translation_scores
from training.optimizer import learning_rate_schedule, make_optimizer
from training.run import Run
from training.step import init_state, make_train_step, pmap_eval_step, pmap_train_step, split_rows

FINAL_SAMPLES = 5


class Data(NamedTuple):
    """Everything a run reads: texts and tokens of the training and the held-out pairs."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    train: Pairs
    valid: tuple[Corpus, Pairs] | None
    test: Corpus | None


class Evaluator:
    """Judges parameters on validation data and remembers which did best."""

    def __init__(self, config: Config, run: Run, data: Data, model: Transformer):
        self._config, self._run, self._data = config, run, data
        self._eval_step = pmap_eval_step(model, config.training)
        self._translator = None
        self.best, self.without_better = {}, 0

    def judge(self, checkpoint: int | str, step: int, params) -> None:
        """Record validation scores; `best` becomes `checkpoint` where they are better."""
        if self._data.valid is None:
            return
        corpus, pairs = self._data.valid
        training = self._config.training
        metrics = held_out_loss(self._eval_step, params, pairs, self._config)
        count = training.eval_sentences or len(corpus.source)
        sources, references = corpus.source[:count], corpus.target[:count]
        texts = self.translate(params, sources)
        scores, _ = translation_scores(texts, references)
        metrics |= {f"valid_{name}": value for name, value in scores.items()}
        self._run.record(step, metrics)
        self._run.write_samples(checkpoint, samples(sources, texts, references, 20))
        shown = ", ".join(f"{name[6:]} {value:.4g}" for name, value in metrics.items())
        self._run.log(f"validation of {checkpoint}: {shown}")
        value = metrics[f"valid_{training.best_metric}"]
        sign = 1.0 if training.best_metric == "bleu" else -1.0
        if not self.best or sign * value > sign * self.best[training.best_metric]:
            self.best = {"checkpoint": checkpoint, training.best_metric: value}
            self.without_better = 0
        else:
            self.without_better += 1

    def translate(self, params, sources: list[str]) -> list[str]:
        if self._translator is None:
            self._translator = Translator(
                self._config.model, params, self._data.tokenizers, self._config.decoding
            )
        self._translator.use(params)
        return self._translator.translate(sources)


def read_data(config: Config, run: Run) -> Data:
    """Read, tokenise and report the corpora; sets the model's vocabulary sizes in `config`."""
    train = read_split(config.data, "train")
    valid, test = read_split(config.data, "valid"), read_split(config.data, "test")
    vocab = str(run.path / "vocab")
    if (run.path / "vocab" / "tokenizers.json").exists():
        tokenizers = load_tokenizers(vocab)
    else:
        tokenizers = train_tokenizers(config.data, train.source, train.target)
        save_tokenizers(vocab, *tokenizers)
    config.model.source_vocab_size, config.model.target_vocab_size = (t.size for t in tokenizers)
    config.validate()
    encoded = {}
    for name, corpus in (("train", train), ("valid", valid)):
        if corpus is None:
            continue
        encoded[name], kept, dropped = encode_pairs(corpus, *tokenizers, config.data)
        dropped = {**corpus.dropped, **dropped}
        reasons = ", ".join(f"{n:,} {why}" for why, n in dropped.items())
        run.log(f"{name}: {len(kept):,} pairs kept, {sum(dropped.values()):,} dropped"
                + (f" ({reasons})" if reasons else ""))
    source, target = (t.size for t in tokenizers)
    run.log(f"vocabulary: {source:,} source, {target:,} target, "
            f"{'joint' if tokenizers[0] is tokenizers[1] else 'separate'}")
    held_out = (valid, encoded["valid"]) if valid else None
    return Data(tokenizers, encoded["train"], held_out, test or valid)


def train(config: Config, run: Run, data: Data) -> None:
    """Train to the end, or from where the run stopped; writes checkpoints, metrics and scores."""
    training, devices = config.training, jax.local_device_count()
    model = Transformer(config.model)
    optimizer = make_optimizer(training, config.model.d_model)
    shape = config.rows_per_batch, config.data.source_length, config.data.target_length
    batches = Batches(data.train, *shape, training.seed)
    plan = batches.plan(0)
    share = useful_share(data.train, plan, *shape[1:])
    run.log(f"devices: {devices} × {jax.devices()[0].device_kind} ({jax.default_backend()})")
    run.log(f"parameters: {num_parameters(config.model):,}")
    run.log(f"batch: {shape[0]} rows of {shape[1]} + {shape[2]} tokens, {share:.1%} useful; "
            f"{num_batches(plan, shape[0])} batches an epoch, {training.num_steps:,} steps")

    checkpoints = Checkpoints(run.path, training.keep, training.checkpoint_every)
    evaluator = Evaluator(config, run, data, model)
    state, position = init_state(model, optimizer, training.seed), DataPosition()
    if restored := checkpoints.restore(state):
        state, saved = restored
        position = DataPosition(saved["epoch"], saved["index"])
        evaluator.best, evaluator.without_better = saved["best"], saved["without_better"]
        run.log(f"resumed at step {int(state.step)}")
    step = int(state.step)
    run.go_on_from(step)

    def save():
        best = {"best": evaluator.best, "without_better": evaluator.without_better}
        checkpoints.save(state, {**position._asdict(), **best}, evaluator.best.get("checkpoint"))
        write_best(run.path, evaluator.best)

    def early() -> bool:
        return 0 < training.patience <= evaluator.without_better

    train_step = pmap_train_step(make_train_step(model, optimizer, training))
    schedule = learning_rate_schedule(training, config.model.d_model)
    stop = StopFlag()
    since, tokens, saved_step = time.perf_counter(), 0.0, step
    start_step = step
    stream = batches.iterate(position)
    while step < training.num_steps and not early() and not stop.signal:
        batch, position = next(stream)
        state, metrics = train_step(state, split_rows(batch, devices, training.accumulate))
        step += 1
        tokens += float(metrics["tokens"])  # waits for the step
        if step == start_step + 1:
            run.log(f"first step done, {time.perf_counter() - since:.1f} s after the start of the loop")
            since, tokens, began = time.perf_counter(), 0.0, step
        elif step % training.log_every == 0 or step == training.num_steps:
            seconds = time.perf_counter() - since
            values = {name: float(value) for name, value in metrics.items() if name != "tokens"}
            values["learning_rate"] = float(schedule(step - 1))
            values["tokens_per_second"] = tokens / seconds
            run.record(step, {f"train_{name}": value for name, value in values.items()})
            left = (training.num_steps - step) * seconds / (step - began)
            run.log(f"step {step}/{training.num_steps}  loss {values['loss']:.3f}  "
                    f"accuracy {values['accuracy']:.3f}  lr {values['learning_rate']:.2e}  "
                    f"{values['tokens_per_second']:,.0f} target tokens/s  {clock(left)} left")
            since, tokens, began = time.perf_counter(), 0.0, step
        else:
            run.progress(f"step {step}/{training.num_steps}  loss {float(metrics['loss']):.3f}")
        if step % training.eval_every == 0 or step == training.num_steps:
            evaluator.judge(step, step, state.params)
            since, tokens, began = time.perf_counter(), 0.0, step
        if step % training.checkpoint_every == 0 or step == training.num_steps:
            save()
            saved_step = step
    stream.close()
    if saved_step < step:
        save()
    if stop.signal:
        run.log(f"stopped by {stop.signal.name} after step {step}; the same command goes on")
        run.close()
        sys.exit(128 + stop.signal)
    finish(config, run, data, checkpoints, evaluator, step)


def finish(config, run, data, checkpoints, evaluator, step) -> None:
    """Average the last checkpoints, and score the best of all on held-out data."""
    checkpoints.save_average()
    evaluator.judge("average", step, checkpoints.place(load_params(run.path, "average")))
    write_best(run.path, evaluator.best)
    if data.test is not None:
        params = checkpoints.place(load_params(run.path, "best"))
        texts = evaluator.translate(params, data.test.source)
        scores, signature = translation_scores(texts, data.test.target)
        run.log("")
        print("\n".join(samples(data.test.source, texts, data.test.target, FINAL_SAMPLES)))
        print(f"held-out BLEU {scores['bleu']:.2f} ({signature})")
        print(f"held-out exact match {scores['exact_match']:.1f} % of {len(texts):,} sentences "
              f"(checkpoint: {evaluator.best.get('checkpoint', 'latest')})")
        run.record(step, {f"test_{name}": value for name, value in scores.items()})
    print(f"translate with: python decode.py --workdir={run.path} --input=FILE", flush=True)


class StopFlag:
    """SIGTERM and SIGINT ask the loop to stop after its step; a second one stops at once."""

    def __init__(self):
        self.signal = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def _set(self, number, _):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else
                      signal.default_int_handler)
        self.signal = signal.Signals(number)


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def main() -> None:
    f = flags.FLAGS
    config = CONFIG.value
    if not isinstance(config, Config):
        raise flags.Error(f"--config={f['config'].config_filename}: no such file, or no Config in it")
    config.validate()
    started = time.perf_counter()
    name = Path(f["config"].config_filename).stem
    run = Run(Path(f.workdir or f"runs/{name}"), f.overwrite)
    run.adopt(config)
    run.log(f"run: {run.path}")
    data = read_data(config, run)
    run.describe(config)
    prepare_jax(f.compilation_cache)
    train(config, run, data)
    run.log(f"done in {clock(time.perf_counter() - started)}")
    run.close()


if __name__ == "__main__":
    CONFIG = config_flags.DEFINE_config_file(
        "config", "configs/korean_english.py", "The run: a file with get_config(); it is executed."
    )
    flags.DEFINE_string("workdir", "", "The run directory; runs/NAME of the config by default.")
    flags.DEFINE_bool("overwrite", False, "Begin anew where the run directory holds a run.")
    flags.DEFINE_string("compilation_cache", "", "Directory of compiled programs, or off.")
    run_command(main)
