"""The data of a run: corpora → token ids, with a report of what was dropped."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from data.corpora import read_split
from data.corpus import EXAMPLES, Corpus
from data.pairs import Pairs, encode_pairs, pairs_of_epoch, taken_pairs
from data.subwords import SubwordSampler
from data.tokenizer import Tokenizer
from runtime.notices import throttled
from storage.config import Config
from storage.run import Run

SPLITS = ("train", "valid", "test")


class Data(NamedTuple):
    """The data of a run: token ids of the training pairs, text and token ids of held-out pairs."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    train: Callable[[int], Pairs]  # epoch → its pairs
    valid: tuple[Corpus, Pairs] | None
    test: Corpus | None
    files: dict[str, dict[str, str]]  # split → file → sha256
    locate: Callable[[int, np.ndarray], list[str]]  # (epoch, pairs of it) → "train.de:777", …

    @property
    def file_hashes(self) -> dict[str, str]:
        """File → sha256, of all splits."""
        return {name: sha for files in self.files.values() for name, sha in files.items()}


class EncodedSplit(NamedTuple):
    """Token ids of a split; pair i of `pairs` is pair `indices[i]` of the corpus."""

    pairs: Pairs
    indices: np.ndarray
    dropped: dict[str, list[int]]  # reason → pairs of the corpus that were dropped


def read_corpora(config: Config, run: Run) -> dict[str, Corpus | None]:
    """The training, validation and test data by name; logs progress."""
    log = throttled(run.log)
    return {split: read_split(config.data, split, log) for split in SPLITS}


def encode_corpora(
    config: Config,
    run: Run,
    corpora: dict[str, Corpus | None],
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> Data:
    """Encode the corpora as token ids, and log how many pairs were kept and dropped.

    The test data is not encoded: its sentences are truncated at translation, never dropped.
    """
    log, encoded = throttled(run.log), {}
    for name, corpus in corpora.items():
        if corpus is None:
            continue
        if name != "test":
            encoded[name] = EncodedSplit(*encode_pairs(corpus, *tokenizers, config.data, log))
        report_split(run, name, corpus, encoded.get(name))
    report_vocabulary(run, tokenizers)
    train, valid = corpora["train"], corpora["valid"]
    return Data(
        tokenizers,
        epoch_pairs(config, train, encoded["train"], tokenizers),
        (valid, encoded["valid"].pairs) if valid else None,
        corpora["test"] or valid,
        {name: corpus.fingerprints for name, corpus in corpora.items() if corpus},
        partial(pair_locations, train, encoded["train"], config.training.seed),
    )


def epoch_pairs(
    config: Config,
    corpus: Corpus,
    encoded: EncodedSplit,
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> Callable[[int], Pairs]:
    """The function epoch → training pairs; with data.subword_sampling it tokenizes each epoch."""
    seed = config.training.seed
    if not config.data.subword_sampling:
        return partial(pairs_of_epoch, encoded.pairs, seed)
    texts = [[side[i] for i in encoded.indices] for side in (corpus.source, corpus.target)]
    return SubwordSampler(encoded.pairs, texts, tokenizers, config.data, seed)


def pair_locations(
    corpus: Corpus, encoded: EncodedSplit, seed: int, epoch: int, chosen: np.ndarray
) -> list[str]:
    """The file and line of some pairs of an epoch."""
    taken = taken_pairs(encoded.pairs.weights, seed, epoch)[chosen]
    return [corpus.where(i) for i in encoded.indices[taken]]


def report_split(run: Run, name: str, corpus: Corpus, encoded: EncodedSplit | None) -> None:
    """Log the numbers of kept and dropped pairs, with examples for each reason."""
    dropped, examples, kept = dict(corpus.dropped), dict(corpus.examples), len(corpus.source)
    if encoded:
        kept = len(encoded.indices)
        for reason, pairs in encoded.dropped.items():
            dropped[reason] = len(pairs)
            examples[reason] = [corpus.where(i) for i in pairs[:EXAMPLES]]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    run.log(
        f"{name}: {kept:,} pairs kept, {sum(dropped.values()):,} dropped"
        + (f" ({reasons})" if reasons else "")
        + f", {corpus.replaced:,} lines with replaced bytes" * (corpus.replaced > 0)
    )
    if len(corpus.origins) > 1 and encoded:
        for origin, (count, weight) in zip(corpus.origins, encoded.pairs.weights, strict=True):
            run.log(f"  {' '.join(dict.fromkeys(origin.names))}: {count:,} pairs × {weight:g}")
    if corpus.loss_weights is not None:
        run.log(f"  loss weights: {min(corpus.loss_weights):g} to {max(corpus.loss_weights):g}")
    for reason, places in examples.items():
        run.log(f"  {reason}: {', '.join(places)}, …")


def report_vocabulary(run: Run, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Log the sizes of the vocabulary."""
    source, target = tokenizers
    run.log(
        f"vocabulary: {source.size:,} source, {target.size:,} target, "
        f"{'joint' if source is target else 'separate'}"
    )
