"""The files of tokenizers, from which tokenizer_files.py and transformers read the same tokenizers.

A function for each family returns contents by file name: bytes, or the object of a JSON file. It
raises UserError(CHECKPOINT) for a kind of tokenizer that the family does not have.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seq2seq.config.data_config import DataConfig
from seq2seq.data.tokenizers.byte_tokenizer import SENTINELS, ByteTokenizer
from seq2seq.data.tokenizers.json_tokenizer import JsonTokenizer, byte_level_document
from seq2seq.data.tokenizers.marian_tokenizer import M2MTokenizer
from seq2seq.data.tokenizers.offset_tokenizer import OffsetTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.files.output_files import write_atomic
from seq2seq.pretrained.json_fields import write_json
from seq2seq.pretrained.language_codes import M2M_CODES, MBART_25
from seq2seq.pretrained.tokenizer_files import CONFIG, FAIRSEQ_MODEL, JSON, PEGASUS_OFFSET, T5_MODEL
from seq2seq.runtime.errors import CHECKPOINT, UserError

SENTINEL = re.compile(r"<extra_id_(\d+)>")
Files = dict[str, bytes | dict[str, Any]]


def write_files(directory: Path, files: Files) -> None:
    """Writes what the functions below return."""
    for name, content in files.items():
        if isinstance(content, bytes):
            write_atomic(directory / name, content)
        else:
            write_json(directory / name, content)


def t5_files(tokenizer: Tokenizer, data: DataConfig) -> Files:
    """T5, mT5, umT5, MADLAD and ByT5."""
    if isinstance(tokenizer, ByteTokenizer):
        return {CONFIG: {"tokenizer_class": "ByT5Tokenizer", "extra_ids": SENTINELS}}
    if isinstance(tokenizer, OffsetTokenizer) and tokenizer.offset == 0:
        outside = {p: i for p, i in tokenizer.special.items() if i >= tokenizer.model_size}
        numbers = [int(match[1]) for piece in outside if (match := SENTINEL.fullmatch(piece))]
        fields = {"extra_ids": max(numbers, default=-1) + 1} | _added(outside)
        return {T5_MODEL: tokenizer.model, CONFIG: {"tokenizer_class": "T5Tokenizer"} | fields}
    return _json_files(tokenizer, "T5Tokenizer", {})


def pegasus_files(tokenizer: Tokenizer, data: DataConfig) -> Files:
    """Pegasus."""
    fields = {"tokenizer_class": "PegasusTokenizer", "offset": PEGASUS_OFFSET}
    if isinstance(tokenizer, OffsetTokenizer) and tokenizer.offset == PEGASUS_OFFSET:
        return {T5_MODEL: tokenizer.model, CONFIG: fields | _added(tokenizer.special)}
    return _json_files(tokenizer, "PegasusTokenizer", {})


def mbart_files(tokenizer: Tokenizer, data: DataConfig) -> Files:
    """mBART and mBART-50."""
    fifty = len(tokenizer.languages) > len(MBART_25) and not data.target_start
    name = "MBart50Tokenizer" if fifty else "MBartTokenizer"
    return _fairseq_files(tokenizer, name, _languages(data))


def m2m_files(tokenizer: Tokenizer, data: DataConfig) -> Files:
    """M2M-100, WMT21 and NLLB."""
    fields: dict[str, Any] = {"legacy_behaviour": True} if data.source_end else {}
    if not isinstance(tokenizer, M2MTokenizer):
        return _fairseq_files(tokenizer, "NllbTokenizer", fields | _languages(data))
    codes = {f"__{code}__": i for code, i in tokenizer.languages.items()}
    names = [name for name, listed in M2M_CODES.items() if listed == [*tokenizer.languages]]
    fields |= {"language_codes": (names or [*M2M_CODES])[0]} | _languages(data) | _added(codes)
    return {
        FAIRSEQ_MODEL: tokenizer.model,
        "vocab.json": {p: i for p, i in tokenizer.vocabulary.items() if p not in codes},
        CONFIG: {"tokenizer_class": "M2M100Tokenizer"} | fields,
    }


def byte_level_files(tokenizer: Tokenizer, data: DataConfig) -> Files:
    """BART: vocab.json and merges.txt if the tokenizer is made of these, else tokenizer.json."""
    if isinstance(tokenizer, JsonTokenizer):
        document = tokenizer.document
        vocabulary, merges = document["model"]["vocab"], document["model"].get("merges", [])
        prefix_space = bool((document["pre_tokenizer"] or {}).get("add_prefix_space"))
        text = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""])
        if document == byte_level_document(vocabulary, text, tokenizer.special, prefix_space):
            fields = {"add_prefix_space": prefix_space} | _added(tokenizer.special)
            return {
                "vocab.json": vocabulary,
                "merges.txt": text.encode(),
                CONFIG: {"tokenizer_class": "BartTokenizer"} | fields,
            }
    return _json_files(tokenizer, "BartTokenizer", {})


def _fairseq_files(tokenizer: Tokenizer, name: str, fields: dict[str, Any]) -> Files:
    if isinstance(tokenizer, OffsetTokenizer) and tokenizer.offset == 1:
        fields = {"tokenizer_class": name} | fields | _added(tokenizer.special)
        return {FAIRSEQ_MODEL: tokenizer.model, CONFIG: fields}
    # Without this list transformers appends its own.
    return _json_files(
        tokenizer, name, fields | {"additional_special_tokens": [*tokenizer.languages]}
    )


def _json_files(tokenizer: Tokenizer, name: str, fields: Mapping[str, Any]) -> Files:
    if not isinstance(tokenizer, JsonTokenizer):
        raise UserError(
            CHECKPOINT,
            f"a vocabulary of {tokenizer.kind} is not supported by {name}: expected that of a "
            "model of this family; fine-tune one with training.init_from, which keeps it",
        )
    return {JSON: tokenizer.serialized(), CONFIG: {"tokenizer_class": name, **fields}}


def _languages(data: DataConfig) -> dict[str, str | None]:
    """The languages with which transformers begins; its own default would be English."""
    return {"src_lang": data.source_language or None, "tgt_lang": data.target_language or None}


def _added(special: Mapping[str, int]) -> dict[str, Any]:
    """The special tokens with their ids, in their order."""
    common = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {str(i): {"content": piece, **common, "special": True} for piece, i in special.items()}
    return {"added_tokens_decoder": added} if added else {}
