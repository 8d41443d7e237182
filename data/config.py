"""The data's configuration: which corpus, which tokenizer, how long a packed row is."""

from dataclasses import dataclass

from runtime.errors import CONFIGURATION, UserError

TOKENIZERS = ("unigram", "bpe", "words", "characters")
BAD_UTF8 = ("error", "replace", "skip")


@dataclass(unsafe_hash=True)
class DataConfig:
    """What `config.data` holds; every field is a flag `--config.data.NAME=VALUE`."""

    # Training pairs: builtin:korean_english, text:SOURCE,TARGET, tsv:FILE (.gz welcome) or
    # tfds:NAME[/CONFIG][:SPLIT]; or a mixture, "2*tsv:a.tsv + 0.5*tsv:b.tsv": an epoch takes each
    # pair of a.tsv twice and half of b.tsv, by turns. The vocabulary sees every pair once.
    corpus: str = "builtin:korean_english"
    # Pairs for validation and test, in the same notation without weights; empty means the splits
    # that builtin or TFDS corpora bring along, and none where it is text.
    valid: str = ""
    test: str = ""
    # Where TFDS data lies; empty means TFDS_DATA_DIR, else ~/tensorflow_datasets.
    data_dir: str = ""
    # Swap source and target.
    reverse: bool = False
    # A line that is not UTF-8: error, replace (the bytes, by U+FFFD) or skip (the pair).
    on_bad_utf8: str = "error"

    # How text becomes tokens: unigram and bpe (SentencePiece), words (split at spaces), characters.
    tokenizer: str = "unigram"
    # The same for the target side; empty means as `tokenizer`.
    target_tokenizer: str = ""
    # One vocabulary for both sides (tied embeddings need it), or one for each.
    joint_vocab: bool = True
    # Most entries of the (source) vocabulary, four special ones included; small corpora give fewer.
    vocab_size: int = 8000
    # The same for the target side of two vocabularies; 0 means as `vocab_size`.
    target_vocab_size: int = 0

    # Cut training text into other subwords each epoch (regularisation); 0 does not. bpe: the
    # probability that a merge is left out (0.1). unigram: the α of P(pieces)^α (0.2; less varies
    # more). Costs a draw for every distinct word and epoch; a text without spaces is all one word.
    subword_sampling: float = 0.0

    # sha256 of the run's vocabularies: not to be set, training does.
    vocab_sha256: str = ""

    # Tokens in one packed row of each side, ends included: also the longest pair that is kept.
    source_length: int = 256
    target_length: int = 256
    # Drop pairs with one side more than this many times as long as the other; 0 keeps all.
    max_length_ratio: float = 0.0

    def validate(self) -> None:
        """Raises UserError(CONFIGURATION) with the first rule that is broken."""
        _require(self.corpus, "data.corpus must name a corpus", self.corpus)
        _one_of("on_bad_utf8", self.on_bad_utf8, BAD_UTF8)
        _one_of("tokenizer", self.tokenizer, TOKENIZERS)
        _one_of("target_tokenizer", self.target_tokenizer, ("", *TOKENIZERS))
        if self.joint_vocab:
            same = self.target_tokenizer in ("", self.tokenizer)
            _require(
                same,
                "data.target_tokenizer must be as data.tokenizer (or empty) with "
                "data.joint_vocab=True",
                self.target_tokenizer,
            )
            same = self.target_vocab_size in (0, self.vocab_size)
            _require(
                same,
                "data.target_vocab_size must be as data.vocab_size (or 0) with "
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
        _require(
            0 <= self.subword_sampling <= 1,
            "data.subword_sampling must be in [0, 1]",
            self.subword_sampling,
        )
        kinds = {self.tokenizer, self.target_tokenizer or self.tokenizer}
        _require(
            not self.subword_sampling or kinds <= {"bpe", "unigram"},
            "data.subword_sampling needs data.tokenizer bpe or unigram on both sides",
            self.subword_sampling,
        )
        _require(
            self.subword_sampling < 1 or "bpe" not in kinds,
            "data.subword_sampling must be below 1 with data.tokenizer=bpe",
            self.subword_sampling,
        )
        for side in ("source_length", "target_length"):
            length = getattr(self, side)
            _require(length >= 2, f"data.{side} must be at least 2 (a token and its end)", length)
        _require(
            self.max_length_ratio == 0 or self.max_length_ratio >= 1,
            "data.max_length_ratio must be 0 (off) or at least 1",
            self.max_length_ratio,
        )


def _require(holds, rule, got):
    if not holds:
        raise UserError(CONFIGURATION, f"{rule}, got {got!r}")


def _one_of(field, value, choices):
    _require(
        value in choices, f"data.{field} must be one of {', '.join(map(repr, choices))}", value
    )
