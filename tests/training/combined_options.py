"""Trainings that combine options: their rows, corpora, configs and runs.

The model is that of bag_of_words.py, so a training costs about a second.
"""

import json
import random
from dataclasses import replace
from functools import cache
from unittest import mock

import jax

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, TrainingConfig
from seq2seq.storage.best_checkpoint import read_best, write_best
from tests.support.models.bag_of_words import MODEL
from tests.support.pairwise import pairwise_rows
from tests.support.runs import scratch, train_cheaply
from tests.support.tiny import WORDS

ROWS, STEPS, WARMUP, KEEP, EVERY, EVALUATED = 3, 9, 3, 2, 3, 7
OPTIONS = {
    "optimizer": ("adam", "adafactor"),
    "schedule": ("paper", "inverse_sqrt", "cosine", "linear", "constant"),
    "accumulate": (1, 2, 3),
    "freeze": ("", "source_embedding/*", "output_*, target_embedding/*"),
    "ema_decay": (0.0, 0.3),
    "init_from": (False, True),
    "loss_weights": (False, True),
    "mixture": ((1,), (0.7, 1.35)),
    "lengths": ((24, 24), (32, 20)),
    "best_metric": ("bleu", "chrf", "loss"),
    "limit": ("num_steps", "patience", "max_epochs"),
    "clip_norm": (0.0, 0.2),
    "weight_decay": (0.0, 0.3),
    "label_smoothing": (0.0, 0.1),
    "dropout": (0.0, 0.3),
    "r_drop": (0.0, 1.5),
    "loss_block": (0, 7),
    "skip_nonfinite": (0, STEPS),
    "devices": (1, 2, 4),
    "seed": (0, 5),
}
LIMITS = {"num_steps": STEPS, "patience": 1, "max_epochs": 2}
COUNT = 18


@cache
def rows():
    """Rows of OPTIONS in which every pair of values occurs."""
    return pairwise_rows(OPTIONS, is_valid, seed=4192)  # of the seeds up to it, the fewest rows


def is_valid(row):
    """Whether the options of a row, some of which may be missing, can be combined."""
    return not row.get("r_drop") or row.get("dropout") != 0.0


@cache
def lines():
    """Different pairs (source, target, loss weight): of two corpora, and of the validation data.

    The last source of the first corpus makes the loss infinite.
    """
    choose = random.Random(0)

    def sentences(count, *lengths):
        drawn = set()
        while len(drawn) < count:
            drawn.add(" ".join(choose.choices(WORDS, k=choose.choice(lengths))))
        return choose.sample(sorted(drawn), count)

    sources = sentences(54, 1, 2, 3) + sentences(16, 4, 5)  # BLEU needs four words
    pairs = [
        (source, source.upper()[::-1], choose.choice((0.0, 0.5, 1.0, 2.5))) for source in sources
    ]
    pairs[31] = f"{sources[31]} <broken>", *pairs[31][1:]
    return pairs[:32], pairs[32:54], pairs[54:]


def parts_of(row):
    """(how often an epoch takes each pair, spec, pairs) of the parts of the training data."""
    first, second, _ = lines()
    if not row["skip_nonfinite"]:
        first = first[:-1]
    if not row["loss_weights"]:
        first = [(*pair[:2], 1.0) for pair in first]
    second = [(*pair[:2], 1.0) for pair in second]
    parts = (spec("first", first, row["loss_weights"]), first), (spec("second", second), second)
    return [(share, *part) for share, part in zip(row["mixture"], parts, strict=False)]


def spec(name, pairs, weighted=False):
    """The spec of a file with these pairs."""
    path = scratch() / f"{name}_{len(pairs)}_{weighted}.tsv"
    columns = 3 if weighted else 2
    path.write_text("".join("\t".join(map(str, pair[:columns])) + "\n" for pair in pairs))
    return f"{'weighted_' * weighted}tsv:{path}"


def config_of(row):
    path, _ = start_run()
    source_length, target_length = row["lengths"]
    data = {
        "corpus": " + ".join(f"{share}*{corpus}" for share, corpus, _ in parts_of(row)),
        "vocab": "" if row["init_from"] else str(path / "vocab" / "joint.model"),
        "source_length": source_length,
        "target_length": target_length,
    }
    training = {name: row[name] for name in OPTIONS if hasattr(TrainingConfig, name)}
    training |= {
        "num_steps": STEPS,
        row["limit"]: LIMITS[row["limit"]],
        "init_from": str(path) if row["init_from"] else "",
        "learning_rate": 0.5 if row["schedule"] == "paper" else 0.05,
        "tokens_per_batch": ROWS * target_length + 3,
        "keep": KEEP,
    }
    if row["optimizer"] == "adam":
        training |= {"adam_b1": 0.8, "adam_b2": 0.95, "adam_epsilon": 1e-4}
    return make_config(row["dropout"], data, training)


def make_config(dropout, data, training):
    every = {"log_every": 1, "eval_every": EVERY, "checkpoint_every": EVERY}
    return Config(
        model=replace(MODEL, dropout=dropout),
        data=DataConfig(valid=spec("valid", lines()[2]), **data),
        training=TrainingConfig(warmup_steps=WARMUP, eval_sentences=EVALUATED, **every, **training),
    )


@cache
def start_run():
    """The path of a run that others start from, and the parameters of its best checkpoint, which is
    not the last one."""
    pairs = [pair for part in lines() for pair in part]
    pairs = [pair for pair in pairs if "<broken>" not in pair[0]]
    data = {"tokenizer": "unigram", "vocab_size": 60, "user_defined": "<broken>"}
    data |= {"corpus": spec("all", pairs), "source_length": 24, "target_length": 24}
    training = {"num_steps": EVERY + 1, "ema_decay": 0.3, "learning_rate": 0.5, "seed": 1}
    training["tokens_per_batch"] = ROWS * 24
    path = scratch() / "start"
    trainer = trained(path, make_config(0.0, data, training))
    write_best(path, read_best(path) | {"checkpoint": EVERY})
    return path, trainer.translator.used[0][0]


def trained(path, config, devices=4, stop_after=None):
    """The trainer of `train_cheaply` on the first devices."""
    some = jax.devices()[:devices]
    counts = {"device_count": lambda: devices, "local_device_count": lambda: devices}
    with mock.patch.multiple(jax, local_devices=lambda: some, **counts):
        return train_cheaply(path, config, stop_after=stop_after)


def metrics(path):
    """The lines of metrics.jsonl without what depends on the time."""
    entries = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    clocks = "time", "train_tokens_per_second"
    return [{k: v for k, v in entry.items() if k not in clocks} for entry in entries]
