"""The BART family: M2M-100 and NLLB, mBART, BART and Pegasus.

One architecture, which descends from fairseq's Transformer, with four sets of choices.
"""

from collections.abc import Iterable, Iterator, Mapping
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
    T5_MODEL,
    load_byte_level_tokenizer,
    load_m2m_tokenizer,
    load_mbart_tokenizer,
    load_nllb_tokenizer,
    load_pegasus_tokenizer,
    tokenizer_fields,
)
from seq2seq.pretrained.transformers_family import OUTPUT, TIE, Template, TransformersFamily

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "silu": "silu",
               "swish": "silu"}  # fmt: skip
SIDES = ("encoder", "decoder")


class Choices(NamedTuple):
    """What distinguishes the families."""

    norm: str
    embedding_norm: bool
    positions: str
    sinusoid_layout: str
    output_bias: bool
    # Fields of transformers 3 with their values. Later versions ignore them, so that another value
    # would be read wrongly. CTranslate2 reads the first two.
    legacy: Mapping[str, bool]


def _config(choices: Choices, fields: JsonFields, names: Iterable[str]) -> ModelConfig:
    for field, value in choices.legacy.items():
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
    return {
        **common_fields(model, ACTIVATIONS),
        **choices.legacy,
        "vocab_size": model.source_vocab_size,
        TIE: model.tied_embeddings == "three-way",
        "decoder_start_token_id": model.start_id,
    }


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
_M2M = Choices(
    norm="pre",
    embedding_norm=False,
    positions="sinusoidal",
    sinusoid_layout="fairseq",
    output_bias=False,
    legacy={},
)
_MBART = Choices(
    norm="pre",
    embedding_norm=True,
    positions="learned",
    sinusoid_layout="interleaved",
    output_bias=True,
    legacy={
        "normalize_before": True,
        "normalize_embedding": True,
        "add_final_layer_norm": True,
        "static_position_embeddings": False,
        "add_bias_logits": False,
    },
)
_BART = Choices(
    norm="post",
    embedding_norm=True,
    positions="learned",
    sinusoid_layout="interleaved",
    output_bias=True,
    legacy={
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
        "add_bias_logits": False,
    },
)
_PEGASUS = Choices(
    norm="pre",
    embedding_norm=False,
    positions="sinusoidal",
    sinusoid_layout="halves",
    output_bias=True,
    legacy={
        "normalize_before": True,
        "normalize_embedding": False,
        "add_final_layer_norm": True,
        "static_position_embeddings": True,
        "add_bias_logits": False,
    },
)
M2M_100 = TransformersFamily(
    model_type="m2m_100",
    name="M2M-100 or NLLB",
    architecture="M2M100ForConditionalGeneration",
    config=partial(_config, _M2M),
    fields=partial(_fields, _M2M),
    tensors=_tensors,
    redundant=_redundant,
    tokenizer_classes=("M2M100Tokenizer", "NllbTokenizer"),
    tokenizer=_m2m_tokenizer,
    vocabulary=(FAIRSEQ_MODEL, "vocab.json"),
    tokenizer_files=m2m_files,
    template=_m2m_template,
    defaults=IDS
    | {
        "decoder_start_token_id": 2,
        "activation_function": "relu",
        "scale_embedding": True,
        "attention_dropout": 0.1,
    },
)
MBART = TransformersFamily(
    model_type="mbart",
    name="mBART",
    architecture="MBartForConditionalGeneration",
    config=partial(_config, _MBART),
    fields=partial(_fields, _MBART),
    tensors=_tensors,
    redundant=_redundant,
    tokenizer_classes=("MBartTokenizer", "MBart50Tokenizer"),
    tokenizer=load_mbart_tokenizer,
    vocabulary=(FAIRSEQ_MODEL,),
    tokenizer_files=mbart_files,
    template=_mbart_template,
    defaults=IDS | {"activation_function": "gelu", "forced_eos_token_id": 2},
)
BART = TransformersFamily(
    model_type="bart",
    name="BART",
    architecture="BartForConditionalGeneration",
    config=partial(_config, _BART),
    fields=partial(_fields, _BART),
    tensors=_tensors,
    redundant=_redundant,
    tokenizer_classes=("BartTokenizer", "RobertaTokenizer"),
    tokenizer=load_byte_level_tokenizer,
    vocabulary=("vocab.json", "merges.txt"),
    tokenizer_files=byte_level_files,
    template=_bart_template,
    defaults=IDS
    | {"decoder_start_token_id": 2, "activation_function": "gelu", "forced_eos_token_id": 2},
)
PEGASUS = TransformersFamily(
    model_type="pegasus",
    name="Pegasus",
    architecture="PegasusForConditionalGeneration",
    config=partial(_config, _PEGASUS),
    fields=partial(_fields, _PEGASUS),
    tensors=_tensors,
    redundant=_redundant,
    tokenizer_classes=("PegasusTokenizer",),
    tokenizer=load_pegasus_tokenizer,
    vocabulary=(T5_MODEL,),
    tokenizer_files=pegasus_files,
    template=lambda settings, directory, tokenizer: Template(),
    defaults={
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "activation_function": "gelu",
        "forced_eos_token_id": 1,
    },
)
