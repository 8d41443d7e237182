"""The cache of trained vocabularies, so that a large corpus is not sampled again by each run.

Each entry is a directory, whose name is a hash of its key: the files of `save_tokenizers`, and
key.json. It is written under another name and renamed, so it is complete.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import corpus_tags
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, save_tokenizers
from seq2seq.data.tokenizers.vocabulary_sample import SAMPLE_CHARACTERS, SAMPLE_PAIRS
from seq2seq.files.output_files import new_directory, write_atomic
from seq2seq.files.temporaries import delete_directory
from seq2seq.runtime.errors import UserError

VERSION = 3  # of the sample and of the training; a change makes all entries unused
KEY = "key.json"
FIELDS = (
    "tokenizer",
    "target_tokenizer",
    "joint_vocab",
    "vocab_size",
    "target_vocab_size",
    "user_defined",
    "normalization",
    "byte_fallback",
)


def vocabulary_key(identities: Sequence[Mapping[str, Any]], config: DataConfig) -> dict[str, Any]:
    """What determines the vocabularies, as JSON: the text of the parts and the options."""
    return {
        "version": VERSION,
        "sample": [SAMPLE_PAIRS, SAMPLE_CHARACTERS],
        "text": list(identities),
        "tags": list(corpus_tags(config.corpus)),
        **{name: getattr(config, name) for name in FIELDS},
    }


def cached_tokenizers(
    directory: Path,
    key: dict[str, Any],
    train: Callable[[], tuple[Tokenizer, Tokenizer]],
    store: bool = True,
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers (source, target) of `key` from the cache, else those of `train()`, which are
    stored there if `store`.

    A damaged entry is replaced. If the entry cannot be written, the next run trains again. Several
    processes may use one directory at the same time.
    """
    canonical = json.dumps(key, sort_keys=True)
    entry = directory / hashlib.sha256(canonical.encode()).hexdigest()
    if cached := _load_entry(entry, canonical):
        return cached
    tokenizers = train()
    if store:
        with suppress(OSError):
            _write_entry(entry, canonical, tokenizers)
    return tokenizers


def _load_entry(entry: Path, canonical: str) -> tuple[Tokenizer, Tokenizer] | None:
    """The tokenizers of a complete entry; None if it is missing or damaged."""
    try:
        if (entry / KEY).read_text(encoding="utf-8") != canonical:
            return None
        return load_tokenizers(str(entry))
    except (OSError, UnicodeDecodeError, UserError):
        return None


def _write_entry(entry: Path, canonical: str, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Write an entry. OSError if that is not possible, or if another process has written it."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with new_directory(entry) as new:
        save_tokenizers(str(new), *tokenizers)
        write_atomic(new / KEY, canonical)
        if entry.exists() and not _load_entry(entry, canonical):  # damaged
            for path in entry.iterdir():  # OSError: it cannot be read now, perhaps it is intact
                path.read_bytes()
            delete_directory(entry)
