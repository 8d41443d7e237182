"""Minimum Bayes risk decoding: of the candidates for a line, the one most similar to the others.

Axes: N candidates. The utility of a candidate, given another one as its reference, is the sentence
score of sacreBLEU. Matches of all pairs are one product of matrices: an n-gram that occurs c times
in a candidate sets the columns (n-gram, 0) … (n-gram, c − 1) of its row to 1, so that the product
of two rows is the sum of min(c, c') over all n-grams.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from seq2seq.data.metrics import METRICS
from seq2seq.decoding.results import Hypothesis

COLUMNS = 2**12  # of a dense block; bounds memory for long texts


def mbr_choice(texts: Sequence[str], utility: str) -> int:
    """The index of the text with the highest expected utility, the first one of several."""
    return int(np.argmax(expected_utilities(texts, utility)))


def mbr_hypothesis(hypotheses: Sequence[Hypothesis], utility: str) -> Hypothesis:
    """The hypothesis with the highest expected utility, which is set in it. Those that the search
    rules forbid, of score −inf, are no candidates unless all are."""
    allowed = [
        hypothesis for hypothesis in hypotheses if hypothesis.score > float("-inf")
    ] or hypotheses
    utilities = expected_utilities([hypothesis.text for hypothesis in allowed], utility)
    best = int(np.argmax(utilities))
    return allowed[best]._replace(utility=float(utilities[best]))


def expected_utilities(texts: Sequence[str], utility: str) -> Float64[np.ndarray, " N"]:
    """The mean utility of each text over all others as references, from 0 to 100; of a single text
    that of the text itself. Equal texts count as often as they occur."""
    counts = Counter(texts)  # in the order of first occurrence
    matrix = utility_matrix(list(counts), utility)
    sums = matrix @ np.array(list(counts.values()), np.float64)
    if len(texts) > 1:
        sums = (sums - np.diagonal(matrix)) / (len(texts) - 1)
    of_text = dict(zip(counts, sums, strict=True))
    return np.array([of_text[text] for text in texts])


def utility_matrix(texts: Sequence[str], utility: str) -> Float64[np.ndarray, "N N"]:
    """The sentence score of each text (row) with each text (column) as the only reference."""
    metric = METRICS[utility]._new()
    infos: list[Any] = [
        metric._extract_reference_info([metric._preprocess_segment(text)]) for text in texts
    ]
    if METRICS[utility].class_name == "CHRF":
        ngrams = (info["ref_ngrams"][0] for info in infos)
        return _chrf([*zip(*ngrams, strict=True)], metric.beta)
    orders = [
        [_of_length(info["ref_ngrams"], n) for info in infos]
        for n in range(1, metric.max_ngram_order + 1)
    ]
    return _bleu(orders, np.array([info["ref_lens"][0] for info in infos], np.float64))


def _of_length(ngrams: Counter, n: int) -> Counter:
    return Counter({ngram: count for ngram, count in ngrams.items() if len(ngram) == n})


def _matches(counters: Sequence[Counter]) -> Float64[np.ndarray, "N N"]:
    """The number of n-grams that each two texts have in common."""
    columns: dict[Hashable, int] = {}
    ones = [
        (columns.setdefault((ngram, occurrence), len(columns)), row)
        for row, counter in enumerate(counters)
        for ngram, count in counter.items()
        for occurrence in range(count)
    ]
    places = np.array(sorted(ones), np.int64).reshape(-1, 2)
    common = np.zeros((len(counters),) * 2)
    for first in range(0, len(columns), COLUMNS):
        start, end = np.searchsorted(places[:, 0], (first, first + COLUMNS))
        block = np.zeros((len(counters), min(COLUMNS, len(columns) - first)), np.float32)
        block[places[start:end, 1], places[start:end, 0] - first] = 1
        common += block @ block.T  # integers below 2^24 are exact
    return common


def _chrf(orders: Sequence[Sequence[Counter]], beta: float) -> Float64[np.ndarray, "N N"]:
    """F-scores of the mean precision and recall over the orders that both texts have."""
    size = len(orders[0])
    precision, recall, used = (np.zeros((size, size)) for _ in range(3))
    for counters in orders:
        common, totals = _matches(counters), _totals(counters)
        both = (totals[:, None] > 0) & (totals > 0)
        precision += common / np.maximum(totals[:, None], 1)
        recall += common / np.maximum(totals, 1)
        used += both
    precision, recall = (sums / np.maximum(used, 1) for sums in (precision, recall))
    denominator = beta**2 * precision + recall
    product = (1 + beta**2) * precision * recall
    return 100 * product / np.where(denominator > 0, denominator, 1)


def _bleu(
    orders: Sequence[Sequence[Counter]], lengths: Float64[np.ndarray, " N"]
) -> Float64[np.ndarray, "N N"]:
    """Sentence BLEU with exponential smoothing, over the orders that the candidate has."""
    size = len(lengths)
    logs, used, smoothing = np.zeros((size, size)), np.zeros((size, 1)), np.ones((size, size))
    any_match = np.zeros((size, size), bool)
    for counters in orders:
        common, totals = _matches(counters), _totals(counters)[:, None]
        missed = (common == 0) & (totals > 0)
        smoothing = np.where(missed, 2 * smoothing, smoothing)
        shares = np.where(missed, 1 / smoothing, common) / np.maximum(totals, 1)
        logs += np.log(np.where(totals > 0, shares, 1))
        used += totals > 0
        any_match |= common > 0
    brevity = np.minimum(0, 1 - lengths / np.maximum(lengths[:, None], 1))
    scores = 100 * np.exp(brevity + logs / np.maximum(used, 1))
    return np.where(any_match, scores, 0)


def _totals(counters: Sequence[Counter]) -> Float[np.ndarray, " N"]:
    return np.array([counter.total() for counter in counters], np.float64)
