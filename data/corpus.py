"""A corpus in memory: pairs of sentences with their origins and the counts of dropped pairs."""

from array import array
from itertools import chain
from typing import NamedTuple

import numpy as np

EXAMPLES = 5  # places recorded for each reason to drop a pair


class Origin(NamedTuple):
    """The origin of consecutive pairs of a corpus, and how often an epoch takes each of them."""

    names: tuple[str, str]  # of source and target: files or data sets, maybe the same
    count: int  # pairs
    weight: float = 1.0


class Corpus(NamedTuple):
    """Pairs of sentences in the order of their files: `source[i]` and `target[i]` are a pair."""

    source: list[str]
    target: list[str]
    numbers: array  # the line (from 1) of pair i, or the number of its example
    origins: tuple[Origin, ...]  # of the pairs, in order
    dropped: dict[str, int]  # reason → number of pairs
    replaced: int  # number of lines in which invalid UTF-8 was replaced by U+FFFD
    examples: dict[str, list[str]]  # reason → the first few places
    fingerprints: dict[str, str]  # file or data set → sha256 of all its lines
    loss_weights: array | None = None  # of each pair, float32; None: 1.0 for all

    def where(self, index: int) -> str:
        """The origin of pair `index`, as "train.de:777"."""
        ends = np.cumsum([origin.count for origin in self.origins])
        origin = self.origins[int(np.searchsorted(ends, index, side="right"))]
        return f"{origin.names[0]}:{self.numbers[index]}"

    @property
    def names(self) -> list[str]:
        """The distinct files and data sets."""
        return list(dict.fromkeys(name for origin in self.origins for name in origin.names))

    def without_text(self) -> "Corpus":
        """The origins and line numbers of the pairs, for `where`, without their text."""
        return self._replace(source=[], target=[])

    def reversed(self) -> "Corpus":
        """The same pairs with source and target swapped."""
        origins = tuple(one._replace(names=one.names[::-1]) for one in self.origins)
        return self._replace(source=self.target, target=self.source, origins=origins)

    def tagged(self, tag: str) -> "Corpus":
        """The same pairs with `tag` and a space before each source."""
        return self._replace(source=[f"{tag} {text}" for text in self.source])


def concatenate_corpora(corpora: list[Corpus], weights: list[float]) -> Corpus:
    """The pairs of several corpora in sequence; an epoch takes each pair of corpus i `weights[i]`
    times."""
    if len(corpora) == 1 and weights == [1.0]:
        return corpora[0]
    dropped, examples, fingerprints = {}, {}, {}
    for corpus in corpora:
        for reason, count in corpus.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
        for reason, places in corpus.examples.items():
            examples[reason] = (examples.get(reason, []) + places)[:EXAMPLES]
        fingerprints |= corpus.fingerprints
    return Corpus(
        list(chain.from_iterable(corpus.source for corpus in corpora)),
        list(chain.from_iterable(corpus.target for corpus in corpora)),
        array("q", chain.from_iterable(corpus.numbers for corpus in corpora)),
        tuple(
            origin._replace(weight=origin.weight * weight)
            for corpus, weight in zip(corpora, weights, strict=True)
            for origin in corpus.origins
        ),
        dropped,
        sum(corpus.replaced for corpus in corpora),
        examples,
        fingerprints,
        _concatenate_weights(corpora),
    )


def _concatenate_weights(corpora: list[Corpus]) -> array | None:
    if all(corpus.loss_weights is None for corpus in corpora):
        return None
    weights = array("f")
    for corpus in corpora:
        weights.extend(corpus.loss_weights or array("f", [1.0]) * len(corpus.source))
    return weights


def without_duplicates(corpus: Corpus) -> Corpus:
    """The first of all identical pairs of a corpus with one origin, in the same order.

    The memory is that of a reference to each distinct pair; its text is not copied.
    """
    (origin,) = corpus.origins
    seen: set[tuple[str, str]] = set()
    kept, places = [], []
    for i, pair in enumerate(zip(corpus.source, corpus.target, strict=True)):
        if pair not in seen:
            seen.add(pair)
            kept.append(i)
        elif len(places) < EXAMPLES:
            places.append(corpus.where(i))
    count, weights = len(corpus.source) - len(kept), corpus.loss_weights
    if not count:
        return corpus
    return corpus._replace(
        source=[corpus.source[i] for i in kept],
        target=[corpus.target[i] for i in kept],
        numbers=array("q", (corpus.numbers[i] for i in kept)),
        origins=(origin._replace(count=len(kept)),),
        dropped=corpus.dropped | {"duplicate": count},
        examples=corpus.examples | {"duplicate": places},
        loss_weights=weights and array("f", (weights[i] for i in kept)),
    )
