"""Quality of texts: BLEU, chrF and TER of sacreBLEU, ROUGE, exact match; each with its signature.

METRICS lists the metrics by name. To add one of sacreBLEU, add a `Metric` to it. BLEU splits texts
into tokens with one of the tokenizers of sacreBLEU, whose name is in the signature.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from seq2seq.config.training_config import BLEU_TOKENIZERS
from seq2seq.runtime.errors import CONFIGURATION, UserError


class Score(NamedTuple):
    """A corpus score in percent with the signature of its settings."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


class ResampledScore(NamedTuple):
    """A corpus score, and the mean ± half width of the 95 % interval of its resamples."""

    value: float
    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.value:8.2f} {self.mean:8.2f} ± {self.half_width:5.2f}"


class Comparison(NamedTuple):
    """The scores of two outputs, and the p-value of their difference."""

    name: str
    baseline: ResampledScore
    output: ResampledScore
    p_value: float
    signature: str

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.signature})\n"
            f"{'':9}    score   95 % interval  p-value\n"
            f"baseline {self.baseline}\n"
            f"output   {self.output}  {self.p_value:7.4f}"
        )


@dataclass(frozen=True)
class Metric:
    """A metric of sacreBLEU; called with texts and references it returns their score.

    Each of several `references` has one line for each text. BLEU counts the n-grams of all
    references of a text; the other metrics take its best one.
    """

    class_name: str  # of sacrebleu.metrics
    options: dict[str, Any] = field(default_factory=dict)  # its arguments
    label: str = ""  # instead of its name

    def __call__(self, texts: Sequence[str], *references: Sequence[str]) -> Score:
        metric = self._new()
        score = metric.corpus_score(texts, references)
        return Score(self.label or score.name, score.score, str(metric.get_signature()))

    def compare(
        self, texts: Sequence[str], baseline: Sequence[str], *references: Sequence[str]
    ) -> Comparison:
        """The paired bootstrap test of sacreBLEU (Koehn 2004): 1,000 resamples of the lines, equal
        for both outputs. Its seed is the environment variable SACREBLEU_SEED, by default 12345."""
        from sacrebleu.significance import PairedTest

        systems = [("baseline", baseline), ("output", texts)]
        metrics = {self.class_name: self._new()}
        test: Any = PairedTest(systems, metrics, references, test_type="bs")
        signatures, columns = test()  # the first column holds the names of the systems
        ((name, signature),) = signatures.items()
        first, second = columns[name]
        return Comparison(
            self.label or name,
            ResampledScore(float(first.score), float(first.mean), float(first.ci)),
            ResampledScore(float(second.score), float(second.mean), float(second.ci)),
            second.p_value,
            str(signature),
        )

    def resampled(
        self, lines: np.ndarray, texts: Sequence[str], *references: Sequence[str]
    ) -> np.ndarray:
        """The score of each row of `lines`, the numbers of drawn lines: [R, L] → [R]."""
        metric = self._new()
        statistics = np.array(metric._extract_corpus_statistics(texts, references))
        sums = (statistics[drawn].sum(axis=0).tolist() for drawn in lines)
        return np.array([metric._compute_score_from_stats(total).score for total in sums])

    def check(self) -> None:
        """UserError(CONFIGURATION) if a package that the metric needs is not installed."""
        self._new()

    def _new(self) -> Any:
        from sacrebleu import metrics

        try:
            return getattr(metrics, self.class_name)(**self.options)
        except RuntimeError:  # of a tokenizer
            name = self.options["tokenize"]
            extra = f"sacrebleu[{name[:2]}]"
            raise UserError(
                CONFIGURATION,
                f"the BLEU tokenizer {name} is not installed: expected the packages of {extra}; "
                f"pip install '{extra}'",
            ) from None


class RougeMetric(Metric):
    """A metric of rouge-score; the class name is its kind of ROUGE."""

    def _new(self) -> Any:
        try:
            from seq2seq.data.rouge import Rouge
        except ModuleNotFoundError:
            raise UserError(
                CONFIGURATION,
                "ROUGE is not installed: expected the package rouge-score; "
                "pip install -e '.[rouge]'",
            ) from None
        return Rouge(self.class_name, **self.options)


class ExactMatchMetric(Metric):
    """The share of texts that equal a reference."""

    def _new(self) -> Any:
        from seq2seq.data.exact_match import ExactMatch

        return ExactMatch()


# Cased BLEU of detokenised text (Post 2018), by tokenizer. `force` allows tokenised text.
BLEU = {
    name: Metric("BLEU", {"tokenize": name, "force": name == "none"}) for name in BLEU_TOKENIZERS
}
bleu = BLEU["13a"]
# Of text split at spaces. Not comparable to `bleu`; some papers report it.
tokenized_bleu = Metric(
    "BLEU",
    {"lowercase": True, "tokenize": "none", "force": True},
    "lower-cased tokenised BLEU",
)
chrf = Metric("CHRF")  # chrF2: F-score of character n-grams (Popović 2015)
chrf_words = Metric("CHRF", {"word_order": 2})  # chrF++: with words and bigrams (Popović 2017)
ter = Metric("TER")  # edits per word of the reference (Snover et al. 2006); lower is better
exact = ExactMatchMetric("exact")

METRICS = {"bleu": bleu, "tokenized_bleu": tokenized_bleu, "chrf": chrf, "chrf++": chrf_words}
METRICS |= {"ter": ter, "exact": exact}
METRICS |= {f"bleu:{name}": metric for name, metric in BLEU.items()}
# The F1 scores of ROUGE (Lin 2004) with the words of English, and with those of all scripts.
ROUGE_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
ROUGE = {
    "rouge": [RougeMetric(kind) for kind in ROUGE_KINDS],
    "rouge:unicode": [RougeMetric(kind, {"unicode": True}) for kind in ROUGE_KINDS],
}
METRIC_NAMES = ", ".join((*METRICS, *ROUGE))


# Scripts whose words `13a` does not separate, with the tokenizers that do.
HINTS = {
    "Japanese": (re.compile("[\u3040-\u30ff]"), "bleu:ja-mecab or bleu:char"),
    "Korean": (re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"), "bleu:ko-mecab"),
    "Chinese": (re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"), "bleu:zh"),
    "Thai, Lao, Burmese or Khmer": (
        re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"), "bleu:char"),
}  # fmt: skip
HINT_TEXTS = 1000  # references that are examined
JAPANESE_SHARE = 0.05  # of kana, which Chinese does not have


def tokenizer_hint(metrics: Sequence[Metric], *references: Sequence[str]) -> str:
    """A warning if BLEU with the tokenizer 13a is among the metrics and most letters of the
    references are of a script whose words it does not separate; else empty."""
    if not any(metric.options.get("tokenize") == "13a" for metric in metrics):
        return ""
    text = "".join(line for lines in references for line in lines[:HINT_TEXTS])
    letters = sum(map(str.isalpha, text))
    counts = {script: len(pattern.findall(text)) for script, (pattern, _) in HINTS.items()}
    if 2 * sum(counts.values()) <= letters:
        return ""
    script = max(counts, key=lambda script: counts[script])
    if script == "Chinese" and counts["Japanese"] > JAPANESE_SHARE * letters:
        script = "Japanese"
    return (
        f"warning: most letters of the references are {script}, which BLEU's tokenizer 13a does "
        f"not split into words: expected {HINTS[script][1]}, or chrf"
    )
