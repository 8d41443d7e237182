"""Training of vocabularies on the sentences of both sides."""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from seq2seq.config.data_config import SUBWORD_TOKENIZERS, DataConfig
from seq2seq.config.special_tokens import END, LIST_SPECIALS, PAD, SPECIALS, START, UNKNOWN
from seq2seq.data.tokenizers.characters import INVISIBLE, shown
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer, split_tokens
from seq2seq.data.tokenizers.sentencepiece_model import NORMAL, overlaps, read_pieces, with_pieces
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import make_tokenizer
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.workers import Workers

THREADS = 16  # fixed: SentencePiece's result depends on it
LONGEST_SENTENCE = 4192  # bytes: SentencePiece's default, above which it ignores a sentence
# Characters of text from which SentencePiece is trained in another process, whose memory is
# returned: up to 30 bytes per character.
LARGE_TEXT = 5_000_000


def train_tokenizers(
    config: DataConfig,
    source: Sequence[str],
    target: Sequence[str],
    user_defined: Sequence[str] = (),
) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers (source, target) trained on the sentences; the same object twice if joint.

    `user_defined` are pieces of the source vocabulary that are never split, such as tags, in
    addition to those of `config`, which are in both. Deterministic. UserError(CONFIGURATION) if the
    vocabulary is too small for the alphabet, UserError(DATA) if the sentences are blank.

    The sentences are those of `sample_texts` or any others. A large text is sent to another
    process, which trains subwords on it and ends.
    """
    kinds = {config.tokenizer, config.target_tokenizer or config.tokenizer}
    size = sum(map(len, source)) + sum(map(len, target))
    arguments = config, source, target, user_defined
    if size < LARGE_TEXT or kinds.isdisjoint(SUBWORD_TOKENIZERS):
        return _train_sides(*arguments)
    with Workers(1) as workers:
        serialized = workers.submit(_train_serialized, *arguments).result()
    sides = [make_tokenizer(kind, content) for kind, content in serialized]
    return sides[0], sides[-1]


def _train_serialized(*arguments: Any) -> list[tuple[str, bytes]]:
    """`_train_sides` as arguments of `make_tokenizer`: one vocabulary if it is joint, else two."""
    source, target = _train_sides(*arguments)
    sides = [source] if source is target else [source, target]
    return [(tokenizer.kind, tokenizer.serialized()) for tokenizer in sides]


def _train_sides(
    config: DataConfig, source: Sequence[str], target: Sequence[str], user_defined: Sequence[str]
) -> tuple[Tokenizer, Tokenizer]:
    kind, size = config.tokenizer, config.vocab_size
    in_both = list(dict.fromkeys(config.normal_form(config.user_defined).split()))
    in_source = list(dict.fromkeys([*in_both, *user_defined]))
    train = partial(_train, config)
    if config.joint_vocab:
        joint = train(kind, "vocab_size", size, (source, target), in_source)
        return joint, joint
    target_field = "target_vocab_size" if config.target_vocab_size else "vocab_size"
    target_kind = config.target_tokenizer or kind
    return (
        train(kind, "vocab_size", size, (source,), in_source),
        train(target_kind, target_field, getattr(config, target_field), (target,), in_both),
    )


def _train(
    config: DataConfig,
    kind: str,
    field: str,
    size: int,
    corpora: Sequence[Sequence[str]],
    user_defined: list[str],
) -> Tokenizer:
    """A tokenizer of at most `size` entries, the value of the config field `field`."""
    _check_visible(kind, corpora)
    if kind in SUBWORD_TOKENIZERS:
        return _train_sentencepiece(config, kind, field, size, corpora, user_defined)
    tokens = (split_tokens(kind, text, user_defined) for text in chain(*corpora))
    counts = Counter(chain.from_iterable(tokens))
    room = size - SPECIALS - len(user_defined)
    if room < 1:
        raise UserError(
            CONFIGURATION,
            f"config.data.{field} must be at least {size + 1 - room} for {len(user_defined)} "
            f"user-defined pieces, got {size}",
        )
    others = counts.keys() - {*user_defined, *LIST_SPECIALS}
    ranked = sorted(others, key=lambda token: (-counts[token], token))
    return ListTokenizer(kind, "\n".join([*user_defined, *ranked[:room]]).encode("utf-8"))


def _check_visible(kind: str, corpora: Sequence[Sequence[str]]) -> None:
    """UserError(DATA) if no character of the sentences is visible."""
    invisible: set[str] = set()
    for text in chain(*corpora):
        for character in set(text) - invisible:
            if not (character.isspace() or INVISIBLE.match(character)):
                return
            invisible.add(character)
    code_points = ", ".join(map(shown, sorted(invisible)[:5])) or "no characters"
    raise UserError(
        DATA,
        f"no vocabulary of {kind} can be trained: expected sentences with visible characters, got "
        f"only {code_points}; check the corpus and its encoding",
    )


def _train_sentencepiece(
    config: DataConfig,
    kind: str,
    field: str,
    size: int,
    corpora: Sequence[Sequence[str]],
    user_defined: list[str],
) -> SentencePieceTokenizer:
    from sentencepiece import SentencePieceTrainer

    sentences = [part for text in chain(*corpora) for part in sentence_parts(text)]
    alphabet = len(set().union(*sentences))
    model = io.BytesIO()
    # An option at its default would be stored in the model, and would change its sha256.
    rules: dict[str, Any] = {"user_defined_symbols": user_defined} if user_defined else {}
    rules |= {"byte_fallback": True} if config.byte_fallback else {}
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            num_threads=THREADS,
            minloglevel=2,
            # Rare characters, e.g. of Chinese, must not displace the subwords.
            character_coverage=1.0 if 4 * alphabet <= size else 0.9995,
            normalization_rule_name=config.normalization,
            pad_id=PAD,
            bos_id=START,
            eos_id=END,
            unk_id=UNKNOWN,
            **rules,
        )
    except RuntimeError as error:
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            more = f", {len(user_defined)} user-defined pieces" if user_defined else ""
            more += ", 256 bytes" if config.byte_fallback else ""
            raise UserError(
                CONFIGURATION,
                f"config.data.{field} must be at least {needed[1]} for "
                f"the alphabet of this corpus{more}, got {size}",
            ) from None
        if "all_chars_count" in str(error) or "sentences_.empty" in str(error):
            raise _nothing_left(kind, len(sentences), config.normalization) from None
        raise UserError(
            DATA,
            f"SentencePiece cannot train a vocabulary on {len(sentences)} "
            f"sentences with {alphabet} different characters: {error}",
        ) from None
    trained = model.getvalue()
    if kind == "unigram" and user_defined:
        trained = _without_overlaps(trained, user_defined)
    return SentencePieceTokenizer(kind, trained)


def _nothing_left(kind: str, count: int, normalization: str) -> UserError:
    return UserError(
        DATA,
        f"no vocabulary of {kind} can be trained: expected other characters than ▁ (U+2581), which "
        "SentencePiece takes as a space, and sentences without ▅ (U+2585), which it ignores, got "
        f"none in {count:,} sentences with data.normalization={normalization}; train on other "
        "text, or with data.tokenizer=characters",
    )


def sentence_parts(text: str) -> Iterator[str]:
    """`text` in parts of at most LONGEST_SENTENCE bytes, cut at spaces where possible.

    The words are the same: SentencePiece splits at spaces. Its time grows faster than the length of
    a text without spaces, and it ignores longer sentences.
    """
    if len(text.encode("utf-8")) <= LONGEST_SENTENCE:
        yield text
        return
    start, most = 0, LONGEST_SENTENCE // 4  # a character has at most four bytes
    while start < len(text):
        end = start + most
        if end < len(text):
            space = text.rfind(" ", start + 1, end)
            end = end if space < 0 else space
        yield text[start:end]
        start = end


def _without_overlaps(model: bytes, user_defined: Sequence[str]) -> bytes:
    """The unigram model without the pieces that could split a user-defined piece.

    Unigram segmentation prefers a user-defined piece to its parts, but not to a piece that begins
    before it or ends after it: with the piece "cad", it may split "cade" as "cad" "e" although "de"
    is user-defined.
    """
    return with_pieces(
        model,
        [
            piece
            for piece in read_pieces(model)
            if piece.type != NORMAL or not any(overlaps(piece.text, text) for text in user_defined)
        ],
    )
