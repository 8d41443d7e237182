"""How a run translates unless decode.py is told otherwise: the fields of config.decoding."""

from dataclasses import dataclass, field
from typing import Any

from model.config import CHOICES

ALPHA = 4  # the most: lengths are below 2^31, and (2^31)^4 = 2^124 is within float32


def option(default: Any, help: str) -> Any:
    """A field of DecodingConfig and what decode.py --help says of its flag."""
    return field(default=default, metadata={"help": help})


@dataclass(unsafe_hash=True)
class DecodingConfig:
    """How a run translates unless decode.py is told otherwise (the paper's section 6.1)."""

    # Lengths count the end token, in source and target.
    beam_size: int = option(4, "hypotheses kept; 1 is greedy search")
    nbest: int = option(1, "hypotheses given for each sentence, at most beam_size")
    alpha: float = option(0.6, "length penalty ((5 + length) / 6)^alpha, from 0 to 4")
    power_penalty: bool = option(False, "length^alpha instead")
    horizon: int = option(
        0, "stop where nothing can win that ends within so many tokens; 0: within the limit (exact)"
    )
    max_extra_length: int = option(
        50, "tokens allowed beyond the length of the source, within the model's max_length"
    )
    max_length: int = option(0, "most tokens; 0 sets no limit")
    max_length_ratio: float = option(0.0, "most tokens, × the source's; 0 sets no limit")
    min_length: int = option(0, "fewest tokens")
    min_length_ratio: float = option(0.0, "fewest tokens, × the source's")
    repetition_penalty: float = option(
        1.0, "factor of the log-probabilities of tokens that the translation already has"
    )
    no_repeat_ngram: int = option(0, "no run of so many tokens twice; 0 allows all")
    suppress: str = option("", "target pieces that never come, with spaces between")
    renormalize: bool = option(False, "share the probability of suppressed pieces among the others")
    samples: int = option(0, "above 0: draw so many translations instead of searching")
    temperature: float = option(1.0, "of the samples: below 1 likelier, above 1 more varied")
    top_k: int = option(0, "draw from the best k tokens; 0 from all")
    top_p: float = option(1.0, "draw from the fewest tokens that have this share of probability")
    seed: int = option(0, "of the samples")
    batch_size: int = option(32, "sentences in one compiled batch, for each device")

    dtype: str = option(
        "", "of the computation: float32, mixed or bfloat16; empty: as the model was trained"
    )

    @property
    def hypotheses(self) -> int:
        """How many translations there are of each sentence."""
        return self.samples or self.nbest

    def validate(self) -> None:
        """Raises ValueError: rule, expected, got."""
        for name, least in (
            ("beam_size", 1),
            ("nbest", 1),
            ("alpha", 0),
            ("max_extra_length", 0),
            ("max_length", 0),
            ("max_length_ratio", 0),
            ("min_length", 0),
            ("min_length_ratio", 0),
            ("horizon", 0),
            ("no_repeat_ngram", 0),
            ("samples", 0),
            ("top_k", 0),
            ("seed", 0),
            ("batch_size", 1),
        ):
            value = getattr(self, name)
            if not least <= value < 2**31:
                rule = "below 2^31" if value >= 2**31 else f"at least {least}"
                raise ValueError(f"decoding.{name} must be {rule}, got {value}")
        if self.alpha > ALPHA:
            raise ValueError(f"decoding.alpha must be at most {ALPHA}, got {self.alpha}")
        for name in ("repetition_penalty", "temperature", "top_p"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"decoding.{name} must be above 0, got {getattr(self, name)}")
        if self.top_p > 1.0:
            raise ValueError(f"decoding.top_p must be at most 1, got {self.top_p}")
        if self.dtype not in ("", *CHOICES["dtype"]):
            raise ValueError(
                f"decoding.dtype must be one of {', '.join(CHOICES['dtype'])}, got {self.dtype!r}"
            )
        if self.nbest > self.beam_size and not self.samples:
            raise ValueError(
                "decoding.nbest must be at most decoding.beam_size, got "
                f"{self.nbest} > {self.beam_size}"
            )
