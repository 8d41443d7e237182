"""Vocabularies: training on a corpus, saving to a run directory, loading."""

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from data.config import TOKENIZERS, DataConfig
from data.marian_tokenizer import MarianTokenizer
from data.tokenizer import (
    END,
    PAD,
    SPECIALS,
    START,
    SUBWORD_TOKENIZERS,
    UNKNOWN,
    ListTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    split_tokens,
)
from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from runtime.files import write_atomic

TRAINING_SENTENCES = 2_000_000  # more slow the training of SentencePiece down with little gain
THREADS = 16  # fixed: SentencePiece's result depends on it


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

    `user_defined` are pieces of the source vocabulary that are never split, such as tags; a
    tokenizer of characters has none. Deterministic. UserError(CONFIGURATION) if the vocabulary is
    too small for the alphabet, UserError(DATA) if the sentences are blank.
    """
    kind, size = config.tokenizer, config.vocab_size
    if config.joint_vocab:
        joint = _train(kind, "vocab_size", size, (source, target), user_defined)
        return joint, joint
    target_size = ("target_vocab_size", config.target_vocab_size)
    target_size = target_size if config.target_vocab_size else ("vocab_size", size)
    return (
        _train(kind, "vocab_size", size, (source,), user_defined),
        _train(config.target_tokenizer or kind, *target_size, (target,), ()),
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


def _train(kind, field, size, corpora, user_defined):
    if kind in SUBWORD_TOKENIZERS:
        return _train_sentencepiece(kind, field, size, corpora, user_defined)
    counts = Counter(token for text in chain(*corpora) for token in split_tokens(kind, text))
    if not counts:
        raise UserError(DATA, f"no vocabulary of {kind} can be trained: all sentences are blank")
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    if kind == "words":
        ranked = list(dict.fromkeys([*user_defined, *ranked]))
    return ListTokenizer(kind, "\n".join(ranked[: size - SPECIALS]).encode("utf-8"))


def _train_sentencepiece(kind, field, size, corpora, user_defined):
    from sentencepiece import SentencePieceTrainer

    # Every k-th sentence: a deterministic sample.
    stride = sum(map(len, corpora)) // TRAINING_SENTENCES + 1
    sentences = [text for corpus in corpora for text in corpus[::stride]]
    alphabet = len(set().union(*sentences))
    model = io.BytesIO()
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
            user_defined_symbols=list(user_defined),
            pad_id=PAD,
            bos_id=START,
            eos_id=END,
            unk_id=UNKNOWN,
        )
    except RuntimeError as error:
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise UserError(
                CONFIGURATION,
                f"config.data.{field} must be at least {needed[1]} for "
                f"the alphabet of this corpus, got {size}",
            ) from None
        raise UserError(
            DATA,
            f"SentencePiece cannot train a vocabulary on {len(sentences)} "
            f"sentences with {alphabet} different characters: {error}",
        ) from None
    return SentencePieceTokenizer(kind, model.getvalue())


def _load(directory, side, content):
    kind = content["kind"]
    if kind not in (*TOKENIZERS, "marian"):
        raise ValueError(f"the tokenizer kind {kind!r} is unknown")
    path = _path(directory, side, kind)
    with open(path, "rb") as file:
        serialized = file.read()
    if hashlib.sha256(kind.encode() + b"\n" + serialized).hexdigest() != content["sha256"]:
        raise ValueError(f"the sha256 of {path} has changed")
    if kind == "marian":  # imported, never trained here
        return MarianTokenizer.load(serialized)
    if kind in SUBWORD_TOKENIZERS:
        return SentencePieceTokenizer(kind, serialized)
    return ListTokenizer(kind, serialized)


def _path(directory, side, kind):
    suffix = {"unigram": ".model", "bpe": ".model", "marian": ".json"}.get(kind, ".txt")
    return os.path.join(directory, side + suffix)
