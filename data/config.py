"""The configuration of the data: corpora, tokenizers, and the length of a packed row."""

from dataclasses import dataclass, field
from typing import Any

from runtime.errors import CONFIGURATION, UserError

TOKENIZERS = ("unigram", "bpe", "words", "characters")
SUBWORD_TOKENIZERS = {"bpe", "unigram"}
BAD_UTF8 = ("error", "replace", "skip")


def setting(default: Any, help: str) -> Any:
    """A field of DataConfig with its help text."""
    return field(default=default, metadata={"help": help})


@dataclass(unsafe_hash=True)
class DataConfig:
    """The fields of `config.data`; each is a flag `--config.data.NAME=VALUE`."""

    corpus: str = setting(
        "builtin:korean_english",
        "training pairs: builtin:korean_english, text:SOURCE,TARGET, tsv:FILE (both may be .gz), "
        "tfds:NAME[/CONFIG][:SPLIT], or a mixture such as 2*tsv:a.tsv + 0.5*tsv:b.tsv: an epoch "
        "takes each pair of a.tsv twice and half of the pairs of b.tsv, alternating; the "
        "vocabulary is trained on each pair once",
    )
    valid: str = setting(
        "",
        "validation pairs, in the notation of corpus without weights; empty: the validation split "
        "of the builtin and tfds corpora, none for text and tsv",
    )
    test: str = setting("", "test pairs, as for valid")
    data_dir: str = setting(
        "", "directory of TFDS data; empty: TFDS_DATA_DIR, else ~/tensorflow_datasets"
    )
    reverse: bool = setting(False, "swap source and target")
    on_bad_utf8: str = setting(
        "error",
        "for a line that is not UTF-8: error, replace (invalid bytes by U+FFFD) or skip (the pair)",
    )

    tokenizer: str = setting(
        "unigram", "unigram or bpe (SentencePiece), words (split at spaces), or characters"
    )
    target_tokenizer: str = setting("", "the same for the target side; empty: as tokenizer")
    joint_vocab: bool = setting(
        True, "one vocabulary for both sides, which tied embeddings need; else one for each side"
    )
    vocab_size: int = setting(
        8000,
        "maximum number of entries of the (source) vocabulary, including four special ones; small "
        "corpora give fewer",
    )
    target_vocab_size: int = setting(
        0, "the same for the target side of two vocabularies; 0: as vocab_size"
    )

    subword_sampling: float = setting(
        0.0,
        "sample other subwords of the training text in each epoch (regularisation); 0: off; bpe: "
        "the probability of dropping a merge (0.1); unigram: α of P(pieces)^α (0.2; lower varies "
        "more); costs a draw per distinct word and epoch; a text without spaces is one word",
    )

    vocab_sha256: str = setting("", "sha256 of the run's vocabularies; set by training")

    source_length: int = setting(
        256, "tokens in a packed source row, end tokens included; longer sentences are dropped"
    )
    target_length: int = setting(
        256, "tokens in a packed target row, end tokens included; longer sentences are dropped"
    )
    max_length_ratio: float = setting(
        0.0, "drop a pair if one side has more than this many times the tokens of the other; 0: off"
    )

    def validate(self) -> None:
        """Raises UserError(CONFIGURATION) with the first rule that is violated."""
        _require(self.corpus, "data.corpus must name a corpus", self.corpus)
        _require_choice("on_bad_utf8", self.on_bad_utf8, BAD_UTF8)
        self._validate_vocabulary()
        self._validate_subword_sampling()
        for side in ("source_length", "target_length"):
            length = getattr(self, side)
            _require(length >= 2, f"data.{side} must be at least 2 (a token and its end)", length)
        _require(
            self.max_length_ratio == 0 or self.max_length_ratio >= 1,
            "data.max_length_ratio must be 0 (off) or at least 1",
            self.max_length_ratio,
        )

    def _validate_vocabulary(self):
        _require_choice("tokenizer", self.tokenizer, TOKENIZERS)
        _require_choice("target_tokenizer", self.target_tokenizer, ("", *TOKENIZERS))
        if self.joint_vocab:
            _require(
                self.target_tokenizer in ("", self.tokenizer),
                "data.target_tokenizer must be empty or equal data.tokenizer with "
                "data.joint_vocab=True",
                self.target_tokenizer,
            )
            _require(
                self.target_vocab_size in (0, self.vocab_size),
                "data.target_vocab_size must be 0 or equal data.vocab_size with "
                "data.joint_vocab=True",
                self.target_vocab_size,
            )
        _require(
            self.vocab_size > 4,
            "data.vocab_size must be above the 4 special tokens",
            self.vocab_size,
        )
        _require(
            self.target_vocab_size == 0 or self.target_vocab_size > 4,
            "data.target_vocab_size must be 0 or above the 4 special tokens",
            self.target_vocab_size,
        )

    def _validate_subword_sampling(self):
        _require(
            0 <= self.subword_sampling <= 1,
            "data.subword_sampling must be in [0, 1]",
            self.subword_sampling,
        )
        kinds = {self.tokenizer, self.target_tokenizer or self.tokenizer}
        _require(
            not self.subword_sampling or kinds <= SUBWORD_TOKENIZERS,
            "data.subword_sampling needs data.tokenizer bpe or unigram on both sides",
            self.subword_sampling,
        )
        _require(
            self.subword_sampling < 1 or "bpe" not in kinds,
            "data.subword_sampling must be below 1 with data.tokenizer=bpe",
            self.subword_sampling,
        )


def _require(holds, rule, got):
    if not holds:
        raise UserError(CONFIGURATION, f"{rule}, got {got!r}")


def _require_choice(name, value, choices):
    _require(value in choices, f"data.{name} must be one of {', '.join(map(repr, choices))}", value)
