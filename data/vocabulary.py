"""Vocabularies: training on a corpus, saving to a run directory, loading."""

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

from data.config import SUBWORD_TOKENIZERS, TOKENIZERS, DataConfig
from data.marian_tokenizer import MarianTokenizer
from data.sentencepiece_model import NORMAL, overlaps, read_pieces, with_pieces
from data.tokenizer import (
    END,
    PAD,
    SPECIALS,
    START,
    UNKNOWN,
    ListTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    split_tokens,
)
from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from runtime.files import write_atomic
from runtime.workers import Workers

THREADS = 16  # fixed: SentencePiece's result depends on it
# Characters of text from which SentencePiece is trained in another process, whose memory is
# returned: up to 30 bytes per character.
LARGE_TEXT = 5_000_000


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """sha256 of the kind and the vocabulary."""
    return hashlib.sha256(tokenizer.kind.encode() + b"\n" + tokenizer.serialized()).hexdigest()


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

    The text is that of `data.sample.sample_texts` or any other. A large text is sent to another
    process, which trains subwords on it and ends.
    """
    kinds = {config.tokenizer, config.target_tokenizer or config.tokenizer}
    size = sum(map(len, source)) + sum(map(len, target))
    arguments = config, source, target, user_defined
    if size < LARGE_TEXT or kinds.isdisjoint(SUBWORD_TOKENIZERS):
        return _train_sides(*arguments)
    with Workers(1) as workers:
        serialized = workers.submit(_train_serialized, *arguments).result()
    sides = [make_tokenizer(*one) for one in serialized]
    return sides[0], sides[-1]


def make_tokenizer(kind: str, serialized: bytes) -> Tokenizer:
    """The tokenizer with this kind and `serialized()`."""
    if kind == "marian":  # imported, never trained here
        return MarianTokenizer.load(serialized)
    if kind in SUBWORD_TOKENIZERS:
        return SentencePieceTokenizer(kind, serialized)
    return ListTokenizer(kind, serialized)


def _train_serialized(*arguments) -> list[tuple[str, bytes]]:
    """`_train_sides` as arguments of `make_tokenizer`: one vocabulary if it is joint, else two."""
    source, target = _train_sides(*arguments)
    sides = [source] if source is target else [source, target]
    return [(one.kind, one.serialized()) for one in sides]


def _train_sides(config, source, target, user_defined):
    kind, size, in_both = config.tokenizer, config.vocab_size, config.user_defined.split()
    in_source = list(dict.fromkeys([*in_both, *user_defined]))
    train = partial(_train, byte_fallback=config.byte_fallback)
    if config.joint_vocab:
        joint = train(kind, "vocab_size", size, (source, target), in_source)
        return joint, joint
    target_size = ("target_vocab_size", config.target_vocab_size)
    target_size = target_size if config.target_vocab_size else ("vocab_size", size)
    return (
        train(kind, "vocab_size", size, (source,), in_source),
        train(config.target_tokenizer or kind, *target_size, (target,), in_both),
    )


def save_tokenizers(directory: str, source: Tokenizer, target: Tokenizer) -> None:
    """Writes the vocabularies to `directory`, then tokenizers.json, which describes them."""
    os.makedirs(directory, exist_ok=True)
    sides = {"joint": source} if source is target else {"source": source, "target": target}
    contents = {}
    for side, tokenizer in sides.items():
        contents[side] = {
            "kind": tokenizer.kind,
            "size": tokenizer.size,
            "sha256": tokenizer_sha256(tokenizer),
        }
        write_atomic(_path(directory, side, tokenizer.kind), tokenizer.serialized())
    write_atomic(os.path.join(directory, "tokenizers.json"), json.dumps(contents, indent=1))


def load_tokenizers(directory: str) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers (source, target) of `save_tokenizers`; the same object twice if joint.

    UserError(CHECKPOINT) if a file is missing or has changed.
    """
    description = os.path.join(directory, "tokenizers.json")
    try:
        with open(description, "rb") as file:
            contents = json.load(file)
        sides = ["joint"] if "joint" in contents else ["source", "target"]
        loaded = [_load(directory, side, contents[side]) for side in sides]
    except FileNotFoundError as error:
        raise UserError(
            CHECKPOINT,
            f"the vocabulary in {directory} is incomplete: {error.filename} is missing",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            CHECKPOINT,
            f"the vocabulary in {directory} is damaged: {error}; restore it from a copy of the run",
        ) from None
    return loaded[0], loaded[-1]


def _train(kind, field, size, corpora, user_defined, byte_fallback):
    if kind in SUBWORD_TOKENIZERS:
        return _train_sentencepiece(kind, field, size, corpora, user_defined, byte_fallback)
    tokens = (split_tokens(kind, text, user_defined) for text in chain(*corpora))
    counts = Counter(chain.from_iterable(tokens))
    if not counts:
        raise UserError(DATA, f"no vocabulary of {kind} can be trained: all sentences are blank")
    room = size - SPECIALS - len(user_defined)
    if room < 1:
        raise UserError(
            CONFIGURATION,
            f"config.data.{field} must be at least {size + 1 - room} for {len(user_defined)} "
            f"user-defined pieces, got {size}",
        )
    ranked = sorted(counts.keys() - user_defined, key=lambda token: (-counts[token], token))
    return ListTokenizer(kind, "\n".join([*user_defined, *ranked[:room]]).encode("utf-8"))


def _train_sentencepiece(kind, field, size, corpora, user_defined, byte_fallback):
    from sentencepiece import SentencePieceTrainer

    sentences = list(chain(*corpora))
    alphabet = len(set().union(*sentences))
    model = io.BytesIO()
    # An option at its default would be stored in the model, and would change its sha256.
    rules = {"user_defined_symbols": user_defined} if user_defined else {}
    rules |= {"byte_fallback": True} if byte_fallback else {}
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
            normalization_rule_name="nmt_nfkc",
            pad_id=PAD,
            bos_id=START,
            eos_id=END,
            unk_id=UNKNOWN,
            **rules,
        )
    except RuntimeError as error:
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            more = f", {len(user_defined)} user-defined pieces" if user_defined else ""
            more += ", 256 bytes" if byte_fallback else ""
            raise UserError(
                CONFIGURATION,
                f"config.data.{field} must be at least {needed[1]} for "
                f"the alphabet of this corpus{more}, got {size}",
            ) from None
        raise UserError(
            DATA,
            f"SentencePiece cannot train a vocabulary on {len(sentences)} "
            f"sentences with {alphabet} different characters: {error}",
        ) from None
    trained = model.getvalue()
    if kind == "unigram" and user_defined:
        trained = _without_overlaps(trained, user_defined)
    return SentencePieceTokenizer(kind, trained)


def _without_overlaps(model, user_defined):
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
            if piece.type != NORMAL or not any(overlaps(piece.text, one) for one in user_defined)
        ],
    )


def _load(directory, side, content):
    kind = content["kind"]
    if kind not in (*TOKENIZERS, "marian"):
        raise ValueError(f"the tokenizer kind {kind!r} is unknown")
    path = _path(directory, side, kind)
    with open(path, "rb") as file:
        serialized = file.read()
    if hashlib.sha256(kind.encode() + b"\n" + serialized).hexdigest() != content["sha256"]:
        raise ValueError(f"the sha256 of {path} has changed")
    return make_tokenizer(kind, serialized)


def _path(directory, side, kind):
    suffix = {"unigram": ".model", "bpe": ".model", "marian": ".json"}.get(kind, ".txt")
    return os.path.join(directory, side + suffix)
