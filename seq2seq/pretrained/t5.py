"""The T5 family: T5, T5 v1.1, FLAN-T5, ByT5, MADLAD-400, mT5 and umT5."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.common_fields import name_of
from seq2seq.pretrained.json_fields import JsonFields
from seq2seq.pretrained.tensors import Tensor
from seq2seq.pretrained.tokenizer_export import t5_files
from seq2seq.pretrained.tokenizer_files import (
    JSON,
    T5_MODEL,
    load_byte_tokenizer,
    load_t5_tokenizer,
    tokenizer_fields,
)
from seq2seq.pretrained.transformers_family import OUTPUT, Template, TransformersFamily

# "gated-gelu" is the tanh approximation, "gelu" without a gate is exact.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu",
               "swish": "silu"}  # fmt: skip
GATED = ACTIVATIONS | {"gelu": "gelu_tanh"}
SHARED = "shared.weight"
COPIES = ("decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
# In the oldest files; it has no effect.
OLD_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def _config(
    fields: JsonFields, names: Iterable[str], *, may_scale: bool, tables: str
) -> ModelConfig:
    """`tables` is ModelConfig.relative_tables. Without `may_scale` no field scales the logits."""
    projection = fields.get("feed_forward_proj")
    name = projection.removeprefix("gated-") if isinstance(projection, str) else ""
    activations = GATED if projection != name else ACTIVATIONS
    if name not in activations:
        fields.refuse("feed_forward_proj", f"{', '.join(ACTIVATIONS)}, or gated- and one of them")
    # transformers prefers these two, which state the same again.
    fields.require("is_gated_act", projection != name)
    fields.require("dense_act_fn", "gelu_new" if projection == "gated-gelu" else name)
    tied = fields.boolean("tie_word_embeddings", True)
    if tables == "layer" and OUTPUT in names:  # transformers 5 writes true for umT5 in any case
        tied = False
    layers = fields.integer("num_layers", "model.num_layers")
    has_decoder_layers = "num_decoder_layers" in fields
    size = fields.integer("vocab_size", "model.source_vocab_size")
    rate = fields.number("dropout_rate", "model.dropout", 0.1)
    return ModelConfig(
        source_vocab_size=size, target_vocab_size=size,
        d_model=fields.integer("d_model", "model.d_model"),
        d_ff=fields.integer("d_ff", "model.d_ff"),
        num_heads=fields.integer("num_heads", "model.num_heads"),
        d_k=fields.integer("d_kv", "model.d_k"), num_layers=layers,
        num_decoder_layers=(
            fields.integer("num_decoder_layers", "model.num_decoder_layers")
            if has_decoder_layers else layers
        ),
        dropout=rate, attention_dropout=rate, activation_dropout=rate,
        norm="pre", norm_function="rms", positions="relative",
        relative_buckets=fields.integer("relative_attention_num_buckets", "model.relative_buckets"),
        relative_distance=fields.integer(
            "relative_attention_max_distance", "model.relative_distance"
        ),
        relative_tables=tables, activation=activations[name], gated_feed_forward=projection != name,
        feed_forward_bias=False, scale_scores=False, scale_embeddings=False,
        layer_norm_epsilon=fields.number("layer_norm_epsilon", "model.layer_norm_epsilon", 1e-6),
        # Files that transformers 5 has saved again state tie_word_embeddings=true although they
        # have an output matrix: the tensors decide.
        tied_embeddings="inputs" if OUTPUT in names else "three-way",
        scale_logits=may_scale and fields.boolean("scale_decoder_outputs", tied),
        pad_id=fields.integer("pad_token_id", "model.pad_id", 0),
        start_id=fields.integer("decoder_start_token_id", "model.start_id", 0),
        end_id=fields.integer("eos_token_id", "model.end_id", 0), unknown_id=2,
    )  # fmt: skip


def _fields(model: ModelConfig) -> dict[str, Any]:
    """The inverse of `_config`. All versions of transformers read one of the two last fields."""
    activations = GATED if model.gated_feed_forward else ACTIVATIONS
    prefix = "gated-" if model.gated_feed_forward else ""
    return {
        "vocab_size": model.source_vocab_size,
        "d_model": model.d_model,
        "d_ff": model.d_ff,
        "d_kv": model.head_size,
        "num_heads": model.num_heads,
        "num_layers": model.num_layers,
        "num_decoder_layers": model.decoder_layers,
        "dropout_rate": model.dropout,
        "relative_attention_num_buckets": model.relative_buckets,
        "relative_attention_max_distance": model.relative_distance,
        "feed_forward_proj": prefix + name_of(model.activation, activations),
        "layer_norm_epsilon": model.layer_norm_epsilon,
        "pad_token_id": model.pad_id,
        "eos_token_id": model.end_id,
        "decoder_start_token_id": model.start_id,
        "tie_word_embeddings": model.tied_embeddings == "three-way",
        "scale_decoder_outputs": model.scale_logits,
    }


def _tensors(config: ModelConfig) -> Iterator[Tensor]:
    table = config.target_vocab_size, config.d_model
    if config.has_output_table:
        yield Tensor(OUTPUT, ("output_embedding", "table"), table)
    yield Tensor(SHARED, ("target_embedding", "table"), table, COPIES, OUTPUT)
    for side, layers in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        for i in range(layers):
            yield from _layer(config, side, i)
        yield from _norm(f"{side}.final_layer_norm", (side, "norm"), config)
        if config.relative_tables == "stack":
            yield from _bias(f"{side}.block.0", (side,), config)


def _layer(config: ModelConfig, side: str, i: int) -> Iterator[Tensor]:
    d, inner, f = config.d_model, config.num_heads * config.head_size, config.d_ff
    block, ours = f"{side}.block.{i}", (side, f"layers_{i}")
    attentions = [("0.SelfAttention", "self_attention", "around_self")]
    if side == "decoder":
        attentions.append(("1.EncDecAttention", "cross_attention", "around_cross"))
    for name, attention, around in attentions:
        for part in ("query", "key", "value"):
            yield Tensor(f"{block}.layer.{name}.{part[0]}.weight", (*ours, attention, part),
                         (inner, d))  # fmt: skip
        yield Tensor(f"{block}.layer.{name}.o.weight", (*ours, attention, "output"), (d, inner))
        yield from _norm(f"{block}.layer.{name[0]}.layer_norm", (*ours, around, "norm"), config)
    if config.relative_tables == "layer":
        yield from _bias(block, ours, config)
    last = f"{block}.layer.{len(attentions)}"
    gated = {"wi_0": ("gate", (f, d)), "wi_1": ("inner", (f, d))}
    plain = {"wi": ("inner", (f, d))}
    for name, (part, shape) in {
        **(gated if config.gated_feed_forward else plain),
        "wo": ("outer", (d, f)),
    }.items():
        path = (*ours, "feed_forward", part)
        yield Tensor(f"{last}.DenseReluDense.{name}.weight", path, shape)
    yield from _norm(f"{last}.layer_norm", (*ours, "around_feed_forward", "norm"), config)


def _norm(name: str, path: tuple[str, ...], config: ModelConfig) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (*path, "scale"), (config.d_model,))


def _bias(block: str, path: tuple[str, ...], config: ModelConfig) -> Iterator[Tensor]:
    name = f"{block}.layer.0.SelfAttention.relative_attention_bias.weight"
    shape = config.relative_buckets, config.num_heads
    yield Tensor(name, (*path, "relative_bias", "table"), shape)


def _tokenizer(directory: Path, rows: int) -> Tokenizer:
    kind = tokenizer_fields(directory).get("tokenizer_class")
    without_files = not any((directory / name).exists() for name in (T5_MODEL, JSON))
    is_byte = kind == "ByT5Tokenizer" or (kind is None and without_files and rows == 384)
    return (load_byte_tokenizer if is_byte else load_t5_tokenizer)(directory, rows)


def _template(settings: JsonFields, directory: Path, tokenizer: Tokenizer) -> Template:
    """MADLAD has the tag of the target language before the source, the others have nothing."""
    has_tags = any(tokenizer.id_of(f"<2{code}>") is not None for code in tokenizer.languages)
    return Template(source_begin="{target}" if has_tags else "")


T5 = TransformersFamily(
    model_type="t5",
    name="T5",
    architecture="T5ForConditionalGeneration",
    config=partial(_config, may_scale=True, tables="stack"),
    fields=_fields,
    tensors=_tensors,
    redundant=lambda config: {OLD_BIAS: None},
    tokenizer_classes=("T5Tokenizer", "MT5Tokenizer", "ByT5Tokenizer"),
    tokenizer=_tokenizer,
    vocabulary=(T5_MODEL,),
    tokenizer_files=t5_files,
    template=_template,
    defaults={
        "pad_token_id": 0,
        "eos_token_id": 1,
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
)
MT5 = replace(
    T5,
    model_type="mt5",
    name="mT5",
    architecture="MT5ForConditionalGeneration",
    config=partial(_config, may_scale=False, tables="stack"),
    defaults={**T5.defaults, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0},
)
UMT5 = replace(
    MT5,
    model_type="umt5",
    name="umT5",
    architecture="UMT5ForConditionalGeneration",
    config=partial(_config, may_scale=True, tables="layer"),
)
