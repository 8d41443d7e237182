"""Models of the built-in corpus, Korean → English, which several experiments share.

The tokens are words and punctuation marks, so that a token of either side is a word of the grammar.
"""

import re
from functools import cache
from typing import NamedTuple

import jax
import numpy as np

from seq2seq.config.special_tokens import UNKNOWN
from seq2seq.data.korean.corpus import generate_corpus
from seq2seq.data.metrics import Metric
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments.small_model import (
    Sequences,
    Task,
    Trained,
    small_config,
    small_training,
    train_model,
)
from seq2seq.training.parameters import init_params

TOKEN = re.compile(r"[^\s.,?]+|[.,?]")
LONGEST = {"tiny": 5, "full": 13}  # Korean words of a sentence
STEPS = {"tiny": 600, "full": 3000}
Texts = list[tuple[str, str]]
word_bleu = Metric("BLEU", {"force": True})  # without a warning about spaces before full stops


class KoreanTask(NamedTuple):
    """The training task, the two tokenizers, and the training and test pairs as words with spaces
    between them."""

    task: Task
    source: ListTokenizer
    target: ListTokenizer
    train: Texts
    test: Texts

    def encoded(self, pairs: Texts) -> tuple[Sequences, Sequences]:
        sources, targets = zip(*pairs, strict=True)
        return self.source.encode_many(sources), self.target.encode_many(targets)

    def is_known(self, pair: tuple[str, str]) -> bool:
        """Whether a pair fits and all its words are in the vocabularies."""
        source, target = (ids[0] for ids in self.encoded([pair]))
        fits = len(source) < self.task.source_length and len(target) < self.task.target_length
        return fits and UNKNOWN not in source + target


def evenly_spaced(pairs: Texts, count: int) -> Texts:
    """At most `count` pairs at equal distances over the whole list. The first half of the test
    pairs has known combinations of words, the second half held-out ones."""
    chosen = np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(int)
    return [pairs[i] for i in chosen]


def spaced(text: str) -> str:
    """A text with spaces around its punctuation marks."""
    return " ".join(TOKEN.findall(text))


@cache
def korean_task(size: str) -> KoreanTask:
    """The pairs of the built-in corpus; of size tiny, the short ones."""
    train, test = (
        [(spaced(ko), spaced(en)) for ko, en in pairs if len(ko.split()) <= LONGEST[size]]
        for name, pairs in generate_corpus().items()
        if name != "validation"
    )
    sides = [[pair[side] for pair in train] for side in (0, 1)]
    tokenizers = [word_tokenizer(side) for side in sides]
    sources, targets = (
        tokenizer.encode_many(side) for tokenizer, side in zip(tokenizers, sides, strict=True)
    )

    def sample(random: np.random.Generator, count: int) -> tuple[Sequences, Sequences]:
        chosen = random.integers(0, len(sources), count)
        return [sources[i] for i in chosen], [targets[i] for i in chosen]

    longest_source, longest_target = (max(map(len, side)) for side in (sources, targets))
    task = Task(tokenizers[0].size, longest_source + 1, longest_target + 1, sample)
    return KoreanTask(task, tokenizers[0], tokenizers[1], train, test)


def word_tokenizer(texts: list[str]) -> ListTokenizer:
    """All words of the texts."""
    words = sorted({word for text in texts for word in text.split()})
    return ListTokenizer("words", "\n".join(words).encode())


def korean_transformer(size: str, heads: int) -> Transformer:
    """A model of two layers of width 64."""
    known = korean_task(size)
    choices = {"d_model": 64, "num_heads": heads, "tied_embeddings": "two-way"}
    return Transformer(small_config(known.task, target_vocab_size=known.target.size, **choices))


@cache
def trained_korean(size: str, seed: int, heads: int = 4) -> Trained:
    """A trained model, kept for the next experiment."""
    model = korean_transformer(size, heads)
    return train_model(model, korean_task(size).task, small_training(seed, STEPS[size]))


def untrained_korean(size: str, seed: int, heads: int = 4) -> Trained:
    """A model with random parameters."""
    model = korean_transformer(size, heads)
    return Trained(model, init_params(model, jax.random.key(seed)), np.zeros(0))
