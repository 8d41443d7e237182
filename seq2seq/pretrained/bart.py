"""The BART family: M2M-100 and NLLB, mBART, BART and Pegasus.

One architecture, which descends from fairseq's Transformer, with four sets of choices.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.model.positions import sinusoidal_positions
from seq2seq.pretrained.common_fields import common_choices, common_fields
from seq2seq.pretrained.json_fields import JsonFields
from seq2seq.pretrained.language_codes import MBART_25
from seq2seq.pretrained.tensors import Redundant, Tensor, attention_layers, norm
from seq2seq.pretrained.tokenizer_export import (
    byte_level_files,
    m2m_files,
    mbart_files,
    pegasus_files,
)
from seq2seq.pretrained.tokenizer_files import (
    FAIRSEQ_MODEL,
    load_byte_level_tokenizer,
    load_m2m_tokenizer,
    load_mbart_tokenizer,
    load_nllb_tokenizer,
    load_pegasus_tokenizer,
    tokenizer_fields,
)
from seq2seq.pretrained.transformers_family import OUTPUT, TIE, Pretrained, Template

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "silu": "silu",
               "swish": "silu"}  # fmt: skip
SIDES = ("encoder", "decoder")
# Fields of transformers 3. Later versions ignore them, so that another value would be read wrongly.
# CTranslate2 reads the first two.
LEGACY = (
    "normalize_before", "normalize_embedding", "add_final_layer_norm",
    "static_position_embeddings", "add_bias_logits",
)  # fmt: skip


class Choices(NamedTuple):
    """What distinguishes the families."""

    norm: str
    embedding_norm: bool
    positions: str
    sinusoid_layout: str
    output_bias: bool
    legacy: tuple[bool, ...] = ()  # the values of LEGACY


def _config(choices: Choices, fields: JsonFields, names: Iterable[str]) -> ModelConfig:
    for field, value in zip(LEGACY, choices.legacy, strict=False):
        fields.require(field, value)
    size = fields.integer("vocab_size", "model.source_vocab_size")
    common = common_choices(fields, ACTIVATIONS)
    return ModelConfig(
        source_vocab_size=size,
        target_vocab_size=size,
        tied_embeddings="three-way" if fields.boolean(TIE, True) else "none",
        norm=choices.norm,
        embedding_norm=choices.embedding_norm,
        positions=choices.positions,
        sinusoid_layout=choices.sinusoid_layout,
        output_bias=choices.output_bias,
        # Without a start token the code of the target language starts.
        start_id=(
            common["end_id"]
            if fields.get("decoder_start_token_id") is None
            else fields.integer("decoder_start_token_id", "model.start_id", 0)
        ),
        unknown_id=3,
        **common,
    )


def _fields(choices: Choices, model: ModelConfig) -> dict[str, Any]:
    """The inverse of `_config`."""
    legacy = dict(zip(LEGACY, choices.legacy, strict=False))
    return (
        common_fields(model, ACTIVATIONS)
        | legacy
        | {
            "vocab_size": model.source_vocab_size,
            TIE: model.tied_embeddings == "three-way",
            "decoder_start_token_id": model.start_id,
        }
    )


def _tensors(config: ModelConfig) -> Iterator[Tensor]:
    d, size = config.d_model, config.target_vocab_size
    shared, table = "model.shared.weight", (size, d)
    sides = [f"model.{side}.embed_tokens.weight" for side in SIDES]
    target = ("target_embedding", "table")
    if config.tied_embeddings == "three-way":
        yield Tensor(shared, target, table, (*sides, OUTPUT))
    else:
        yield Tensor(sides[0], ("source_embedding", "table"), table, fallback=shared)
        yield Tensor(sides[1], target, table, fallback=shared)
        yield Tensor(OUTPUT, ("output_embedding", "table"), table)
    if config.output_bias:
        yield Tensor("final_logits_bias", ("output_bias",), (1, size), zeros=True)
    yield from attention_layers(config)
    for side in SIDES:
        if config.norm == "pre":
            yield from norm(f"model.{side}.layer_norm", (side, "norm"), d)
        if config.embedding_norm:
            yield from norm(f"model.{side}.layernorm_embedding", (side, "embedding_norm"), d)
        if config.positions == "learned":
            name = f"model.{side}.embed_positions.weight"
            path = (side, "positions", "table")
            yield Tensor(name, path, (config.max_length + 2, d), first_row=2)


def _redundant(config: ModelConfig) -> Redundant:
    """fairseq's version numbers; tables that a formula determines; a bias that must be zero."""
    values: dict[str, Any] = {}
    for side in SIDES:
        values |= {f"{side}.version": None, f"model.{side}.version": None}
        if config.sinusoid_layout == "fairseq":
            values[f"model.{side}.embed_positions.weights"] = None
        elif config.sinusoid_layout == "halves":
            sizes = config.max_length, config.d_model
            values[f"model.{side}.embed_positions.weight"] = partial(
                sinusoidal_positions, *sizes, "halves"
            )
    if not config.output_bias:
        values["final_logits_bias"] = partial(np.zeros, (1, config.target_vocab_size), np.float32)
    return values


def _no_template(settings: JsonFields, directory: Path, tokenizer: Tokenizer) -> Template:
    return Template()


def _m2m_tokenizer(directory: Path, rows: int) -> Tokenizer:
    fields = tokenizer_fields(directory)
    is_nllb = "Nllb" in str(fields.get("tokenizer_class", ""))
    is_m2m = (directory / "vocab.json").exists() and (directory / FAIRSEQ_MODEL).exists()
    return (load_m2m_tokenizer if is_m2m and not is_nllb else load_nllb_tokenizer)(directory, rows)


def _m2m_template(settings: JsonFields, directory: Path, tokenizer: Tokenizer) -> Template:
    if tokenizer_fields(directory).boolean("legacy_behaviour", False):
        return Template(source_end="{source}", target_begin="{target}")
    return Template(source_begin="{source}", target_begin="{target}")


def _mbart_template(settings: JsonFields, directory: Path, tokenizer: Tokenizer) -> Template:
    name = str(tokenizer_fields(directory).get("tokenizer_class", ""))
    if "MBart50" in name or ("MBart" not in name and len(tokenizer.languages) > len(MBART_25)):
        return Template(source_begin="{source}", target_begin="{target}")
    return Template(source_end="{source}", target_start="{target}")


def _bart_template(settings: JsonFields, directory: Path, tokenizer: Tokenizer) -> Template:
    """Without a forced <s> the model begins with <s> as the start token, or generates it."""
    forced = settings.get("forced_bos_token_id") == tokenizer.id_of("<s>")
    return Template(source_begin="<s>", target_begin="<s>" if forced else "")


IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_M2M = Choices("pre", False, "sinusoidal", "fairseq", False)
_MBART = Choices("pre", True, "learned", "interleaved", True, (True, True, True, False, False))
_BART = Choices("post", True, "learned", "interleaved", True, (False, True, False, False, False))
_PEGASUS = Choices("pre", False, "sinusoidal", "halves", True, (True, False, True, True, False))
M2M_100 = Pretrained(
    "m2m_100", "M2M-100 or NLLB", "M2M100ForConditionalGeneration",
    partial(_config, _M2M), partial(_fields, _M2M), _tensors, _redundant,
    ("M2M100Tokenizer", "NllbTokenizer"), _m2m_tokenizer, m2m_files, _m2m_template,
    IDS | {"decoder_start_token_id": 2, "activation_function": "relu", "scale_embedding": True,
           "attention_dropout": 0.1},
)  # fmt: skip
MBART = Pretrained(
    "mbart", "mBART", "MBartForConditionalGeneration",
    partial(_config, _MBART), partial(_fields, _MBART), _tensors, _redundant,
    ("MBartTokenizer", "MBart50Tokenizer"), load_mbart_tokenizer, mbart_files, _mbart_template,
    IDS | {"activation_function": "gelu", "forced_eos_token_id": 2},
)  # fmt: skip
BART = Pretrained(
    "bart", "BART", "BartForConditionalGeneration",
    partial(_config, _BART), partial(_fields, _BART), _tensors, _redundant,
    ("BartTokenizer", "RobertaTokenizer"), load_byte_level_tokenizer, byte_level_files,
    _bart_template,
    IDS | {"decoder_start_token_id": 2, "activation_function": "gelu", "forced_eos_token_id": 2},
)  # fmt: skip
PEGASUS = Pretrained(
    "pegasus", "Pegasus", "PegasusForConditionalGeneration",
    partial(_config, _PEGASUS), partial(_fields, _PEGASUS), _tensors, _redundant,
    ("PegasusTokenizer",), load_pegasus_tokenizer, pegasus_files, _no_template,
    {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
     "activation_function": "gelu", "forced_eos_token_id": 1},
)  # fmt: skip
