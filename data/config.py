"""DataConfig: the corpus, the tokenizers and the length of a packed row."""

from dataclasses import dataclass

from runtime.options import check_options, option

TOKENIZERS = ("unigram", "bpe", "words", "characters")
BAD_UTF8 = ("error", "replace", "skip")
BAD_LINE = ("error", "skip")
SPECIAL_TOKENS = 4  # padding, start, end and unknown


@dataclass(unsafe_hash=True)
class DataConfig:
    """What a model is trained on; every field is a flag `--config.data.NAME=VALUE`."""

    corpus: str = option(
        "builtin:korean_english",
        "training pairs: builtin:korean_english, text:SOURCE,TARGET, tsv:FILE, "
        "weighted_tsv:FILE (.gz is decompressed) or tfds:NAME[/CONFIG][:SPLIT]. A mixture, "
        "'2*tsv:a.tsv + 0.5*tsv:b.tsv', takes each pair of a.tsv twice and half of the "
        "pairs of b.tsv in each epoch, the other half in the next; vocabularies are trained on "
        "each pair once. 'tag:>>deu<<:tsv:a.tsv' puts the tag >>deu<< and a space before each "
        "source of a corpus",
    )
    valid: str = option(
        "",
        "validation pairs, as corpus but without weights; empty: the split that a builtin or TFDS "
        "corpus provides, none for text files",
    )
    test: str = option("", "test pairs, as valid")
    data_dir: str = option(
        "", "directory of TFDS data; empty: TFDS_DATA_DIR, else ~/tensorflow_datasets"
    )
    reverse: bool = option(False, "swap source and target")
    on_bad_utf8: str = option(
        "error",
        "for a line that is not UTF-8: error, replace (invalid bytes become U+FFFD) or skip (drop "
        "the pair)",
        choices=BAD_UTF8,
    )
    on_bad_line: str = option(
        "error",
        "for a TSV line with a wrong number of columns or an invalid weight: error or skip (drop "
        "the pair)",
        choices=BAD_LINE,
    )
    deduplicate: bool = option(
        False,
        "drop a training pair that is identical to an earlier one of its corpus; pairs of "
        "different parts of a mixture are not compared",
    )
    tokenizer: str = option(
        "unigram",
        "unigram and bpe (SentencePiece), words (split at spaces) or characters",
        choices=TOKENIZERS,
    )
    target_tokenizer: str = option(
        "", "tokenizer of the target side; empty: as tokenizer", choices=("", *TOKENIZERS)
    )
    joint_vocab: bool = option(
        True, "one vocabulary for both sides (three-way tied embeddings need it)"
    )
    vocab_size: int = option(
        8000,
        "maximum size of the (source) vocabulary, including the four special tokens; small corpora "
        "give fewer",
        above=SPECIAL_TOKENS,
    )
    target_vocab_size: int = option(
        0, "maximum size of a separate target vocabulary; 0: as vocab_size"
    )
    subword_sampling: float = option(
        0.0,
        "subword regularisation: split training text differently in each epoch; 0: off. bpe: the "
        "probability of dropping a merge (0.1). unigram: the exponent α of P(pieces)^α (0.2; lower "
        "varies more). Each epoch draws one segmentation per distinct word; a text without spaces "
        "is one word",
        minimum=0,
        maximum=1,
    )
    vocab_sha256: str = option("", "sha256 of the vocabularies; set by training, not by the user")
    source_length: int = option(
        256,
        "source tokens in one packed row, end tokens included; longer pairs are dropped",
        minimum=2,
    )
    target_length: int = option(
        256,
        "target tokens in one packed row, end tokens included; longer pairs are dropped",
        minimum=2,
    )
    max_length_ratio: float = option(
        0.0,
        "drop pairs with one side more than this many times as long as the other; 0: keep all",
    )

    def validate(self) -> None:
        """Raise ValueError with the rule that is broken: expected, got."""
        check_options("data", self)
        if not self.corpus:
            raise ValueError(f"data.corpus must name a corpus, got {self.corpus!r}")
        if self.target_vocab_size != 0 and not self.target_vocab_size > SPECIAL_TOKENS:
            raise ValueError(
                f"data.target_vocab_size must be 0 or above {SPECIAL_TOKENS}, got "
                f"{self.target_vocab_size}"
            )
        if self.max_length_ratio != 0 and not self.max_length_ratio >= 1:
            raise ValueError(
                f"data.max_length_ratio must be 0 (off) or at least 1, got {self.max_length_ratio}"
            )
        if self.joint_vocab:
            self._check_joint_vocab()
        if self.subword_sampling:
            self._check_subword_sampling()

    def _check_joint_vocab(self) -> None:
        if self.target_tokenizer not in ("", self.tokenizer):
            raise ValueError(
                "data.target_tokenizer must be empty or data.tokenizer with data.joint_vocab=true, "
                f"got {self.target_tokenizer!r}"
            )
        if self.target_vocab_size not in (0, self.vocab_size):
            raise ValueError(
                "data.target_vocab_size must be 0 or data.vocab_size with data.joint_vocab=true, "
                f"got {self.target_vocab_size}"
            )

    def _check_subword_sampling(self) -> None:
        kinds = {self.tokenizer, self.target_tokenizer or self.tokenizer}
        if not kinds <= {"bpe", "unigram"}:
            raise ValueError(
                "data.subword_sampling must be 0 unless both tokenizers are bpe or unigram, got "
                f"{self.subword_sampling} with {' and '.join(sorted(kinds))}"
            )
        if self.subword_sampling == 1 and "bpe" in kinds:
            raise ValueError(
                "data.subword_sampling must be below 1 with data.tokenizer=bpe, got "
                f"{self.subword_sampling}"
            )
