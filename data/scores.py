"""Translation quality: BLEU and chrF of sacreBLEU with their signatures, and exact match."""

from collections.abc import Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """A corpus score from 0 to 100 with the signature of its settings."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(texts: Sequence[str], references: Sequence[str]) -> Score:
    """Cased sacreBLEU of detokenised text (Post 2018)."""
    from sacrebleu.metrics import BLEU

    return _score(BLEU(), texts, references)


def tokenized_bleu(texts: Sequence[str], references: Sequence[str]) -> Score:
    """Lower-cased BLEU of text split at spaces. Not comparable to `bleu`; some papers report it."""
    from sacrebleu.metrics import BLEU

    score = _score(BLEU(lowercase=True, tokenize="none", force=True), texts, references)
    return score._replace(name="lower-cased tokenised BLEU")


def chrf(texts: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2: F-score of character n-grams (Popović 2015)."""
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), texts, references)


def exact_match(texts: Sequence[str], references: Sequence[str]) -> float:
    """The percentage of texts that equal their reference."""
    return 100.0 * sum(map(str.__eq__, texts, references)) / len(references)


def _score(metric, texts, references):
    score = metric.corpus_score(texts, [references])
    return Score(score.name, score.score, str(metric.get_signature()))
