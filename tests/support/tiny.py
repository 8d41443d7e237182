"""A tiny run for tests: a model of a few hundred weights and a corpus of number words."""

import random
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, DecodingConfig, TrainingConfig
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import tokenizer_sha256
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.signals import StopFlag

PARTS = "model", "data", "training", "decoding"
WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn elf".split()
# Blank lines, a very long one, and characters that formats or line splitting might interpret.
UNUSUAL_LINES = [
    "",
    "   ",
    "e",
    "eins " * 4000,
    "😀 zwei 👍🏽",
    "שלום שלוש",
    "drei ||| vier",
    "fünf\tsechs",
    "sieben\u2028acht",
    "sechs\u200b sieben",
    "neun\x00zehn",
    "<s> </s> <pad>",
]


def mixed_lines(count: int, seed: int = 0) -> list[str]:
    """Random lines of words, a tenth of them unusual: blank, very long, other scripts."""
    choose = random.Random(seed)
    return [
        choose.choice(UNUSUAL_LINES)
        if choose.random() < 0.1
        else " ".join(choose.choices(WORDS, k=choose.randint(1, 9)))
        for _ in range(count)
    ]


def write_corpus(path: Path, pairs: int, seed: int = 0) -> str:
    """Write pairs of words and the same words reversed, in upper case, as TSV; returns the spec."""
    choose = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(pairs):
            words = choose.choices(WORDS, k=choose.randint(1, 5))
            file.write(f"{' '.join(words)}\t{' '.join(w.upper() for w in reversed(words))}\n")
    return f"tsv:{path}"


def tiny_config(corpus: str, valid: str = "", **changes: Any) -> Config:
    """Twelve steps of a model that compiles in one or two seconds.

    The learning rate is that of the step, whatever the number of steps, so that trainings of
    different lengths share their programs. `changes` are those of `changed`.
    """
    config = Config(
        model=ModelConfig(d_model=8, d_ff=16, num_heads=2, num_layers=1, max_length=32,
                          source_vocab_size=0, target_vocab_size=0),
        data=DataConfig(corpus=corpus, valid=valid, tokenizer="words", vocab_size=64,
                        source_length=16, target_length=16),
        training=TrainingConfig(num_steps=12, tokens_per_batch=8 * 16, schedule="inverse_sqrt",
                                learning_rate=1e-2, warmup_steps=3, log_every=1, eval_every=4,
                                checkpoint_every=2, keep=3, eval_sentences=7),
        decoding=DecodingConfig(beam_size=2, max_extra_length=5, batch_size=3),
    )  # fmt: skip
    return changed(config, **changes)


def get_config() -> Config:
    """The config for --config=tests/support/tiny.py."""
    return tiny_config(Config().data.corpus)


def changed(config: Config, **changes: Any) -> Config:
    """A copy with other values, given as part__field=value, such as data__tokenizer="bpe"."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        part, _, field = name.partition("__")
        parts.setdefault(part, {})[field] = value
    return replace(
        config,
        **{part: replace(getattr(config, part), **values) for part, values in parts.items()},
    )


def tiny_rnn(kind: str) -> ModelConfig:
    """The RNN of the same sizes as the model of `tiny_config`."""
    return ModelConfig(kind=kind, d_model=8, num_layers=1, max_length=32)


# Fields of which the default config of train.py has other values than Config().
OTHERWISE = ("positions", "optimizer")


def tiny_flags(*parts: str, kind: str = "transformer") -> list[str]:
    """The flags of train.py that set these parts of the config as `tiny_config` does; all parts
    if none is given."""
    config, default = tiny_config(corpus=Config().data.corpus), Config()
    if kind != "transformer":
        config.model = tiny_rnn(kind)
    return [
        f"--config.{part}.{name}={value}"
        for part in parts or PARTS
        for name, value in asdict(getattr(config, part)).items()
        if value != getattr(getattr(default, part), name) or name in OTHERWISE
    ]


def write_run(
    path: Path,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    kind: str = "transformer",
    output_bias: bool = False,
) -> None:
    """Write a run directory with random weights as the average of a complete training.

    The tokenizer is of WORDS unless one is given. `kind` and `output_bias` are those of the model.
    """
    from seq2seq.storage.run_files import write_run as write
    from tests.support.models.random_parameters import random_params

    config = tiny_config("tsv:nowhere")
    if kind != "transformer":
        config.model = tiny_rnn(kind)
    config.model.output_bias = output_bias
    words = tokenizer or ListTokenizer("words", "\n".join(WORDS).encode())
    config.model.source_vocab_size = config.model.target_vocab_size = words.size
    config.data.vocab_sha256 = "+".join([tokenizer_sha256(words)] * 2)
    write(path, config, (words, words), random_params(config.model, seed))


class StopAfter(StopFlag):
    """Stops as after SIGTERM when `steps` steps are done; None: never."""

    def __init__(self, steps):
        super().__init__()
        self.steps, self.calls = steps, 0

    def agreed_status(self, ready=lambda seconds: True, finished=False):
        """Called before training, before each step, and after the loop."""
        self.calls += 1
        if self.steps and self.calls > self.steps + 1:
            self.signal = signal.SIGTERM
        return super().agreed_status(ready, finished)
