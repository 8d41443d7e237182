"""DataConfig: the corpus, the tokenizers and the length of a packed row."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from seq2seq.model.options import Options, option

TOKENIZERS = ("unigram", "bpe", "words", "characters")
BAD_UTF8 = ("error", "replace", "skip")
BAD_LINE = ("error", "skip")
SUBWORD_TOKENIZERS = ("unigram", "bpe")  # those of SentencePiece
NORMALIZATIONS = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")  # of SentencePiece
SPECIAL_TOKENS = 4  # padding, start, end and unknown
TEMPLATES = ("source_begin", "source_end", "target_begin", "target_start")
LANGUAGES = ("source", "target")  # {source} and {target} in TEMPLATES
RESERVED = re.compile(r"<pad>|<s>|</s>|<unk>|<0x[0-9A-F]{2}>|.*[\s▁].*|", re.DOTALL)


@dataclass(unsafe_hash=True)
class DataConfig(Options):
    """What a model is trained on; every field is a flag `--config.data.NAME=VALUE`."""

    section = "data"

    corpus: str = option(
        "builtin:korean_english",
        "training pairs: builtin:korean_english, text:SOURCE,TARGET, tsv:FILE, "
        "weighted_tsv:FILE (.gz, .xz, .bz2 and .zst are decompressed) or "
        "tfds:NAME[/CONFIG][:SPLIT]. A mixture, "
        "'2*tsv:a.tsv + 0.5*tsv:b.tsv', takes each pair of a.tsv twice and half of the "
        "pairs of b.tsv in each epoch, the other half in the next; vocabularies are trained on "
        "each pair once. 'tag:>>deu<<:tsv:a.tsv' puts the tag >>deu<< and a space before each "
        "source of a corpus",
    )
    valid: str = option(
        "",
        "validation pairs, as corpus but without weights, or several corpora with names, "
        "'news=text:a.de,a.en; web=tsv:b.tsv': each is evaluated, and the first one decides which "
        "checkpoint is the best; empty: the validation split of the built-in corpus or of a TFDS "
        "corpus without :SPLIT, otherwise none",
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
    nfc: bool = option(
        True,
        "texts are normalised to Unicode NFC where they enter, in training and decoding: é is one "
        "character, however it was typed",
    )
    deduplicate: bool = option(
        False,
        "drop a training pair that is identical to an earlier one of its corpus; pairs of "
        "different parts of a mixture are not compared",
    )
    vocab: str = option(
        "",
        "SentencePiece models to use instead of training a vocabulary: FILE, or SOURCE,TARGET with "
        "joint_vocab=false; copied into the run directory. The tokenizer, normalization and "
        "vocabulary size fields are ignored",
    )
    tokenizer: str = option(
        "unigram",
        "unigram and bpe (SentencePiece), words (split at white space) or characters",
        choices=TOKENIZERS,
    )
    target_tokenizer: str = option(
        "", "tokenizer of the target side; empty: as tokenizer", choices=("", *TOKENIZERS)
    )
    joint_vocab: bool = option(
        True, "one vocabulary for both sides (tied_embeddings=three-way and inputs need it)"
    )
    vocab_size: int = option(
        8000,
        "maximum size of the (source) vocabulary, including the four special tokens; small corpora "
        "give fewer",
        unit="entries",
        above=SPECIAL_TOKENS,
        below=1 << 24,
    )
    target_vocab_size: int = option(
        0,
        "maximum size of a separate target vocabulary; 0: as vocab_size",
        unit="entries",
        below=1 << 24,
    )
    user_defined: str = option(
        "",
        "pieces that are never split, separated by spaces, such as >>deu<< <num>; they are in the "
        "vocabularies of both sides and count towards their sizes. words: only between spaces",
    )
    normalization: str = option(
        "identity",
        "how a subword vocabulary rewrites the texts of both sides: identity (not at all), nfkc "
        "(½ becomes 1⁄2, ！ becomes !), nmt_nfkc (control characters and zero-width spaces too), "
        "nfkc_cf and nmt_nfkc_cf (and lower case); translations have the rewritten form",
        choices=NORMALIZATIONS,
    )
    byte_fallback: bool = option(
        False,
        "encode a character that has no piece as its UTF-8 bytes, not as the unknown token; 256 "
        "more pieces, which count towards vocab_size; unigram and bpe only",
    )
    vocab_sha256: str = option("", "sha256 of the vocabularies; set by training, not by the user")
    source_length: int = option(
        256,
        "source tokens in one packed row, end tokens included; longer pairs are dropped",
        unit="tokens",
        minimum=2,
    )
    target_length: int = option(
        256,
        "target tokens in one packed row, end tokens included; longer pairs are dropped",
        unit="tokens",
        minimum=2,
    )
    max_length_ratio: float = option(
        0.0,
        "drop pairs with one side more than this many times as long as the other; 0: keep all",
    )
    source_begin: str = option(
        "",
        "pieces before the text of each source, separated by spaces; here and in the next three "
        "fields {source} and {target} are the pieces of data.source_language and "
        "data.target_language",
    )
    source_end: str = option("", "pieces after the end token of each source")
    target_begin: str = option(
        "",
        "pieces with which each target begins; every translation begins with them, and there they "
        "cost nothing",
    )
    target_start: str = option("", "piece that is the start token; empty: that of model.start_id")
    source_language: str = option(
        "", "language of the sources, a code of the vocabulary, such as eng_Latn"
    )
    target_language: str = option("", "language of the targets, such as kor_Hang")

    def check_rules(self) -> None:
        """The rules that concern several fields. Raises ValueError."""
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
        for name in TEMPLATES:
            self._check_template(name)
        if self.joint_vocab:
            self._check_joint_vocab()
        if self.vocab:
            self._check_vocab()
        check_user_defined("data.user_defined", self.user_defined.split())
        if self.byte_fallback and not self._kinds <= set(SUBWORD_TOKENIZERS):
            raise ValueError(
                "data.byte_fallback must be false unless both tokenizers are bpe or unigram, got "
                f"{' and '.join(sorted(self._kinds))}"
            )

    @property
    def vocab_files(self) -> list[str]:
        """The files of `vocab`, one or one per side."""
        return self.vocab.split(",")

    def normal_form(self, text: str) -> str:
        """The text in the form in which this run has all texts."""
        return nfc(text) if self.nfc else text

    def languages_used(self) -> list[str]:
        """Those of LANGUAGES that occur in TEMPLATES."""
        pieces = {piece for name in TEMPLATES for piece in getattr(self, name).split()}
        return [side for side in LANGUAGES if f"{{{side}}}" in pieces]

    def _check_template(self, name: str) -> None:
        pieces = getattr(self, name).split()
        for piece in pieces:
            if piece not in ("{source}", "{target}") and re.search("{(source|target)}", piece):
                raise ValueError(
                    f"data.{name} must have {{source}} and {{target}} as whole pieces, between "
                    f"spaces, got {piece!r}"
                )
        if name == "target_start" and len(pieces) > 1:
            raise ValueError(
                f"data.target_start must be one piece or empty, got {self.target_start!r}"
            )

    @property
    def _kinds(self) -> set[str]:
        return {self.tokenizer, self.target_tokenizer or self.tokenizer}

    def _check_vocab(self) -> None:
        expected, got = 1 if self.joint_vocab else 2, self.vocab_files
        if len(got) != expected or not all(got):
            raise ValueError(
                "data.vocab must be one file with data.joint_vocab=true and SOURCE,TARGET with "
                f"data.joint_vocab=false, got {self.vocab!r} with "
                f"data.joint_vocab={str(self.joint_vocab).lower()}"
            )
        for name in ("user_defined", "byte_fallback"):
            if getattr(self, name):
                raise ValueError(
                    f"data.{name} is not supported with data.vocab: such pieces belong to the "
                    f"training of a vocabulary, got {getattr(self, name)!r}"
                )

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


def nfc(text: str) -> str:
    """The text with composed characters (Unicode NFC); equal for equal-looking spellings of é."""
    return unicodedata.normalize("NFC", text)


def check_user_defined(name: str, pieces: Iterable[str]) -> None:
    """Raise ValueError, with the `name` of the option, for a piece that cannot be user-defined."""
    for piece in pieces:
        if RESERVED.fullmatch(piece):
            raise ValueError(
                f"{name} must be pieces without ▁ or spaces that are neither special tokens nor "
                f"bytes, got {piece!r}"
            )
