"""DecodingConfig: search, length limits and sampling, the defaults of a run's translations."""

from dataclasses import dataclass

from seq2seq.model.config import CHOICES
from seq2seq.model.options import Options, option

INT32_LIMIT = 2**31  # exclusive bound of integers that are placed on devices
MAX_HYPOTHESES = 2**16  # of a sentence, and sentences of a batch
FLOAT32_MAXIMUM = 1e38  # of numbers that are placed on devices
MOST_COMPARED = 1024  # hypotheses by decoding.mbr: 2,048 texts take 4 s and 360 MB for each line
MAX_ALPHA = 4  # lengths are below 2^31, and (2^31)^4 = 2^124 is within float32

# The metrics whose sentence scores are utilities.
UTILITIES = "chrf", "chrf++", "bleu", "bleu:zh", "bleu:ja-mecab", "bleu:ko-mecab", "bleu:char"


@dataclass(unsafe_hash=True)
class DecodingConfig(Options):
    """How a run translates by default (section 6.1 of the paper); decode.py has a flag per field.

    Lengths count the end token, in source and target.
    """

    section = "decoding"

    beam_size: int = option(
        4,
        "live hypotheses of beam search; 1 is greedy search",
        unit="hypotheses",
        minimum=1,
        maximum=MAX_HYPOTHESES,
    )
    nbest: int = option(
        1,
        "hypotheses returned for each sentence, at most beam_size",
        unit="hypotheses",
        minimum=1,
        below=INT32_LIMIT,
    )
    alpha: float = option(
        0.6,
        f"length penalty ((5 + length) / 6)^alpha, from 0 to {MAX_ALPHA}",
        minimum=0,
        maximum=MAX_ALPHA,
    )
    power_penalty: bool = option(False, "use the length penalty length^alpha instead")
    horizon: int = option(
        0,
        "stop when no live hypothesis could win by ending within this many more tokens; 0: within "
        "the limit of the sentence (exact)",
        unit="tokens",
        minimum=0,
        below=INT32_LIMIT,
    )
    stop: str = option(
        "exact",
        "when a search stops: exact: no live hypothesis can win; now: beam_size hypotheses are "
        "finished; full: and none that is live would be better if it ended at once; bound: and "
        "none that is live can become better. now, full and bound are early_stopping True, False "
        'and "never" of transformers',
        choices=("exact", "bound", "full", "now"),
    )
    max_extra_length: int = option(
        50,
        "maximum length beyond that of the source, within the model's max_length",
        unit="tokens",
        minimum=0,
        below=INT32_LIMIT,
    )
    max_length: int = option(
        0, "maximum length in tokens; 0: no limit", unit="tokens", minimum=0, below=INT32_LIMIT
    )
    max_length_ratio: float = option(
        0.0,
        "maximum length as a factor of the source length; 0: no limit",
        minimum=0,
        below=INT32_LIMIT,
    )
    min_length: int = option(
        0, "minimum length in tokens", unit="tokens", minimum=0, below=INT32_LIMIT
    )
    min_length_ratio: float = option(
        0.0, "minimum length as a factor of the source length", minimum=0, below=INT32_LIMIT
    )
    repetition_penalty: float = option(
        1.0,
        "factor on the log-probabilities of tokens that the hypothesis already contains",
        above=0,
        maximum=FLOAT32_MAXIMUM,
    )
    no_repeat_ngram: int = option(
        0,
        "length of n-grams that may not be repeated; 0: no limit",
        unit="tokens",
        minimum=0,
        below=INT32_LIMIT,
    )
    suppress: str = option("", "target pieces that are never generated, separated by spaces")
    suppress_first: str = option(
        "",
        "target pieces that are not generated first, after the forced ones, separated by spaces",
    )
    forbid_sequences: str = option(
        "",
        "sequences of target pieces that are never generated: pieces separated by spaces, "
        "sequences by | between spaces",
    )
    forced_prefix: str = option(
        "",
        "target pieces with which every translation begins, separated by spaces; they cost nothing",
    )
    forced_end: bool = option(
        False, "the end token costs nothing at the maximum length of a sentence"
    )
    renormalize: bool = option(
        False, "distribute the probability of suppressed pieces over the other pieces"
    )
    samples: int = option(
        0,
        "number of sampled translations per sentence; 0: beam search",
        unit="translations",
        minimum=0,
        maximum=MAX_HYPOTHESES,
    )
    temperature: float = option(
        1.0, "softmax temperature of sampling", above=0, maximum=FLOAT32_MAXIMUM
    )
    top_k: int = option(
        0, "sample from the k best tokens; 0: from all", unit="tokens", minimum=0, below=INT32_LIMIT
    )
    top_p: float = option(
        1.0,
        "sample from the fewest tokens with this total probability",
        unit="probability",
        above=0,
        maximum=1,
    )
    seed: int = option(0, "seed of sampling", minimum=0, below=INT32_LIMIT)
    mbr: str = option(
        "",
        "return the sample or hypothesis with the highest expected utility, its mean score with "
        "the others as references; empty: all of them",
        choices=("", *UTILITIES),
    )
    clean_source: bool = option(
        True,
        "characters of a source that the vocabulary does not have are replaced: ﬁ by fi, white "
        "space by a space, invisible ones by nothing; other lines never change",
    )
    batch_size: int = option(
        0,
        "sentences per device in one compiled batch; 0: 32 on a CPU, more on a GPU or TPU",
        unit="sentences",
        minimum=0,
        maximum=MAX_HYPOTHESES,
    )
    model_parallel: int = option(
        1,
        "devices that share one copy of the model, as training.model_parallel, which evaluations "
        "in a training use",
        unit="devices",
        minimum=1,
        maximum=256,
    )
    dtype: str = option(
        "",
        "precision of the computation: float32, mixed or bfloat16; empty: as in training",
        choices=("", *CHOICES["dtype"]),
    )

    @property
    def hypotheses(self) -> int:
        """Translations returned for each sentence."""
        return 1 if self.mbr else self.samples or self.nbest

    def check_rules(self) -> None:
        """The rules that concern several fields. Raises ValueError."""
        if self.nbest > self.beam_size and not self.samples:
            raise ValueError(
                "decoding.nbest must be at most decoding.beam_size, got "
                f"{self.nbest} > {self.beam_size}"
            )
        candidates = self.samples or self.nbest
        if self.mbr and not 2 <= candidates <= MOST_COMPARED:
            raise ValueError(
                f"decoding.mbr={self.mbr} chooses among several translations: expected "
                f"decoding.samples or decoding.nbest from 2 to {MOST_COMPARED}, got {candidates}; "
                "set --samples=64"
            )
        if self.horizon and self.stop != "exact":
            raise ValueError(
                f"decoding.horizon must be 0 with decoding.stop={self.stop}: expected a horizon "
                f"with stop=exact only, got {self.horizon}"
            )
        for suffix in ("", "_ratio"):
            fewest, most = (getattr(self, f"{end}_length{suffix}") for end in ("min", "max"))
            if fewest > most > 0:
                raise ValueError(
                    f"decoding.min_length{suffix} must be at most decoding.max_length{suffix}, got "
                    f"{fewest} > {most}"
                )
