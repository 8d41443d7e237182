"""Vocabularies: trained from a corpus, written to a run directory and read from it."""

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
    UNKNOWN,
    ListTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    split_tokens,
)
from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from runtime.files import write_whole

TRAINING_SENTENCES = 2_000_000  # more make SentencePiece slower, hardly better
THREADS = 16  # SentencePiece's result depends on this number, so it never follows the machine


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """sha256 of the kind and the vocabulary."""
    return hashlib.sha256(tokenizer.kind.encode() + b"\n" + tokenizer.serialized()).hexdigest()


def train_tokenizers(
    config: DataConfig, source: Sequence[str], target: Sequence[str]
) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of the two sides made from their sentences: the same one twice if they are joint.

    The same sentences give the same tokenizers. UserError(CONFIGURATION) if the vocabulary is too
    small for the alphabet, UserError(DATA) if there is nothing to learn from.
    """
    if config.joint_vocab:
        joint = _trained(config.tokenizer, "vocab_size", config.vocab_size, (source, target))
        return joint, joint
    size = ("target_vocab_size", config.target_vocab_size)
    size = size if config.target_vocab_size else ("vocab_size", config.vocab_size)
    return (
        _trained(config.tokenizer, "vocab_size", config.vocab_size, (source,)),
        _trained(config.target_tokenizer or config.tokenizer, *size, (target,)),
    )


def save_tokenizers(directory: str, source: Tokenizer, target: Tokenizer) -> None:
    """Writes the vocabularies into `directory`, then a tokenizers.json that says what they are."""
    os.makedirs(directory, exist_ok=True)
    sides = {"joint": source} if source is target else {"source": source, "target": target}
    contents = {}
    for side, tokenizer in sides.items():
        contents[side] = {
            "kind": tokenizer.kind,
            "size": tokenizer.size,
            "sha256": tokenizer_sha256(tokenizer),
        }
        write_whole(_path(directory, side, tokenizer.kind), tokenizer.serialized())
    write_whole(os.path.join(directory, "tokenizers.json"), json.dumps(contents, indent=1))


def load_tokenizers(directory: str) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers (source, target) that `save_tokenizers` wrote, one twice if they were joint.

    UserError(CHECKPOINT) if a file is missing or is not what was written.
    """
    description = os.path.join(directory, "tokenizers.json")
    try:
        with open(description, "rb") as file:
            contents = json.load(file)
        sides = ["joint"] if "joint" in contents else ["source", "target"]
        loaded = [_loaded(directory, side, contents[side]) for side in sides]
    except FileNotFoundError as error:
        raise UserError(
            CHECKPOINT,
            f"{error.filename} is missing; {directory} holds no complete vocabulary of a run",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            CHECKPOINT,
            f"{directory} holds a damaged vocabulary: {error}; restore it from a copy of the run",
        ) from None
    return loaded[0], loaded[-1]


def _trained(kind, field, size, corpora):
    if kind in ("unigram", "bpe"):
        return _trained_sentencepiece(kind, field, size, corpora)
    counts = Counter(token for text in chain(*corpora) for token in split_tokens(kind, text))
    if not counts:
        raise UserError(DATA, f"no {kind} to make a vocabulary of: all sentences are blank")
    ranked = sorted(counts, key=lambda token: (-counts[token], token))[: size - SPECIALS]
    return ListTokenizer(kind, "\n".join(ranked).encode("utf-8"))


def _trained_sentencepiece(kind, field, size, corpora):
    from sentencepiece import SentencePieceTrainer

    # Every k-th sentence: a sample that needs no random numbers.
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
            # Rare characters (of Chinese, say) may not crowd out the subwords.
            character_coverage=1.0 if 4 * alphabet <= size else 0.9995,
            normalization_rule_name="nmt_nfkc",
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
            f"SentencePiece cannot make a vocabulary of {len(sentences)} "
            f"sentences with {alphabet} different characters: {error}",
        ) from None
    return SentencePieceTokenizer(kind, model.getvalue())


def _loaded(directory, side, content):
    kind = content["kind"]
    if kind not in (*TOKENIZERS, "marian"):
        raise ValueError(f"{kind!r} is no tokenizer")
    path = _path(directory, side, kind)
    with open(path, "rb") as file:
        serialized = file.read()
    if hashlib.sha256(kind.encode() + b"\n" + serialized).hexdigest() != content["sha256"]:
        raise ValueError(f"{path} is not what was saved")
    if kind == "marian":  # never made here, only brought in
        return MarianTokenizer.load(serialized)
    make = SentencePieceTokenizer if kind in ("unigram", "bpe") else ListTokenizer
    return make(kind, serialized)


def _path(directory, side, kind):
    suffix = {"unigram": ".model", "bpe": ".model", "marian": ".json"}.get(kind, ".txt")
    return os.path.join(directory, side + suffix)
