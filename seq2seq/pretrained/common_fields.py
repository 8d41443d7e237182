"""Fields of config.json that several families have in common."""

from collections.abc import Mapping
from typing import Any

from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.json_fields import JsonFields


def supported_fields(fields: JsonFields) -> JsonFields:
    """The fields with one id as eos_token_id. UserError(CHECKPOINT) for several, and for a
    quantised model."""
    if fields.get("quantization_config") is not None:
        fields.refuse("quantization_config", "no such field; quantised models are not supported")
    ends = fields.get("eos_token_id")
    if not isinstance(ends, list):
        return fields
    if len(ends) != 1:
        fields.refuse("eos_token_id", "one id")
    return fields.updated({"eos_token_id": ends[0]})


def common_choices(fields: JsonFields, activations: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of ModelConfig that these fields give; `activations` are their names there and
    here."""
    activation = fields.get("activation_function", "gelu")
    if not isinstance(activation, str) or activation not in activations:
        fields.refuse("activation_function", ", ".join(activations))
    for field, ours in (("ffn_dim", "model.d_ff"), ("attention_heads", "model.num_heads")):
        encoder = fields.integer(f"encoder_{field}", ours)
        if encoder != fields.integer(f"decoder_{field}", ours):
            fields.refuse(f"decoder_{field}", f"{encoder}, as for the encoder")
    return dict(
        d_model=fields.integer("d_model", "model.d_model"),
        d_ff=fields["encoder_ffn_dim"],
        num_heads=fields["encoder_attention_heads"],
        num_layers=fields.integer("encoder_layers", "model.num_layers"),
        num_decoder_layers=fields.integer("decoder_layers", "model.num_decoder_layers"),
        dropout=fields.number("dropout", "model.dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", "model.attention_dropout", 0.0),
        activation_dropout=fields.number("activation_dropout", "model.activation_dropout", 0.0),
        max_length=fields.integer("max_position_embeddings", "model.max_length"),
        activation=activations[activation],
        attention_bias=True,
        layer_norm_epsilon=1e-5,
        scale_embeddings=fields.boolean("scale_embedding", False),
        pad_id=fields.integer("pad_token_id", "model.pad_id", 0),
        end_id=fields.integer("eos_token_id", "model.end_id", 0),
    )


def common_fields(model: ModelConfig, activations: Mapping[str, str]) -> dict[str, Any]:
    """The fields of which `common_choices` reads a model. An activation without a name gets that of
    another one."""
    per_side = {"ffn_dim": model.d_ff, "attention_heads": model.num_heads, "layerdrop": 0.0}
    return {
        "d_model": model.d_model,
        "encoder_layers": model.num_layers,
        "decoder_layers": model.decoder_layers,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "activation_function": name_of(model.activation, activations),
        "max_position_embeddings": model.max_length,
        "scale_embedding": model.scale_embeddings,
        "pad_token_id": model.pad_id,
        "eos_token_id": model.end_id,
        **{
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in per_side.items()
        },
    }


def name_of(activation: str, activations: Mapping[str, str]) -> str:
    """The first of the `activations` that is read as this one; the first of all if there is none,
    which is then read as another one."""
    names = [name for name, ours in activations.items() if ours == activation]
    return (names or [*activations])[0]
