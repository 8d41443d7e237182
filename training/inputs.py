"""The data of a run: corpora → token ids, with a report of what was dropped."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from data.corpora import read_corpus
from data.corpus import EXAMPLES, Corpus
from data.held_out import held_out_specs, qualified
from data.pairs import Pairs, encode_pairs, pairs_of_epoch, taken_pairs
from data.subwords import SubwordSampler
from data.tokenizer import Tokenizer
from runtime.notices import throttled
from storage.config import Config
from storage.run import Run


class Corpora(NamedTuple):
    """The text of a run's data. Held-out corpora have names; the name of a single one is ""."""

    train: Corpus
    valid: dict[str, Corpus]
    test: dict[str, Corpus]

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Split → file → sha256; without the splits that have no corpus."""
        splits = {"train": {"": self.train}, "valid": self.valid, "test": self.test}
        return {
            split: {file: sha for one in named.values() for file, sha in one.fingerprints.items()}
            for split, named in splits.items()
            if named
        }


class Data(NamedTuple):
    """The data of a run: token ids of the training pairs, text and token ids of held-out pairs."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    train: Callable[[int], Pairs]  # epoch → its pairs
    valid: dict[str, tuple[Corpus, Pairs]]  # by name; the first one decides
    test: dict[str, Corpus]  # by name; the validation data if there is no test data
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


def read_corpora(config: Config, run: Run) -> Corpora:
    """The training, validation and test data; logs progress."""
    log, data = throttled(run.log), config.data
    specs = {split: held_out_specs(data, split) for split in ("valid", "test")}
    train = read_corpus(data.corpus, "train", data, log)
    held_out = {
        split: {name: read_corpus(spec, split, data, log) for name, spec in named.items()}
        for split, named in specs.items()
    }
    return Corpora(train, **held_out)


def encode_corpora(
    config: Config,
    run: Run,
    corpora: Corpora,
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> Data:
    """Encode the corpora as token ids, and log how many pairs were kept and dropped.

    The test data is not encoded: its sentences are truncated at translation, never dropped.
    """
    log = throttled(run.log)

    def encode(title: str, corpus: Corpus) -> EncodedSplit:
        encoded = EncodedSplit(*encode_pairs(corpus, *tokenizers, config.data, log))
        report_split(run, title, corpus, encoded)
        return encoded

    train = encode("train", corpora.train)
    valid = {
        name: (corpus, encode(qualified("valid", name), corpus).pairs)
        for name, corpus in corpora.valid.items()
    }
    for name, corpus in corpora.test.items():
        report_split(run, qualified("test", name), corpus, None)
    if len(valid) > 1:
        run.log(f"valid: {next(iter(valid))} decides which checkpoint is the best")
    elif not valid:
        run.log("valid: no data, so no step is evaluated and training.patience has no effect")
    report_vocabulary(run, tokenizers)
    return Data(
        tokenizers,
        epoch_pairs(config, corpora.train, train, tokenizers),
        valid,
        corpora.test or corpora.valid,
        corpora.files,
        partial(pair_locations, corpora.train.without_text(), train, config.training.seed),
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


def report_split(run: Run, title: str, corpus: Corpus, encoded: EncodedSplit | None) -> None:
    """Log the numbers of kept and dropped pairs, with examples for each reason."""
    dropped, examples, kept = dict(corpus.dropped), dict(corpus.examples), len(corpus.source)
    if encoded:
        kept = len(encoded.indices)
        for reason, pairs in encoded.dropped.items():
            dropped[reason] = len(pairs)
            examples[reason] = [corpus.where(i) for i in pairs[:EXAMPLES]]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    run.log(
        f"{title}: {kept:,} pairs kept, {sum(dropped.values()):,} dropped"
        + (f" ({reasons})" if reasons else "")
        + f", {corpus.replaced:,} lines with replaced bytes" * (corpus.replaced > 0)
    )
    if len(corpus.origins) > 1 and encoded:
        for origin, (count, weight) in zip(corpus.origins, encoded.pairs.weights, strict=True):
            run.log(f"  {' '.join(dict.fromkeys(origin.names))}: {count:,} pairs × {weight:g}")
    if corpus.loss_weights is not None:
        run.log(f"  loss weights: {min(corpus.loss_weights):g} to {max(corpus.loss_weights):g}")
    for reason, places in examples.items():  # a line with replaced bytes is not dropped
        more = ", …" * (dropped.get(reason, corpus.replaced) > len(places))
        run.log(f"  {reason}: {', '.join(places)}{more}")


def report_vocabulary(run: Run, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Log the sizes of the vocabulary."""
    source, target = tokenizers
    run.log(
        f"vocabulary: {source.size:,} source, {target.size:,} target, "
        f"{'joint' if source is target else 'separate'}"
    )
