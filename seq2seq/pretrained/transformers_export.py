"""A run written as a directory of transformers: the inverse of transformers_family.py,
bit-exact.

What was written is read again and compared with the run, so that nothing is lost without a message.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from seq2seq.config.data_config import LANGUAGES, TEMPLATES
from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.generation_export import ENGINE, forced_beginning, generation_settings
from seq2seq.pretrained.json_fields import JsonFields, write_json
from seq2seq.pretrained.tensors import stored_tensors
from seq2seq.pretrained.tokenizer_export import write_files
from seq2seq.pretrained.transformers_family import (
    TransformersFamily,
    config_and_tokenizers,
    read_fields,
)
from seq2seq.pretrained.weight_files import write_weights
from seq2seq.runtime.errors import CHECKPOINT, UserError


def differences(row: TransformersFamily, model: ModelConfig) -> dict[str, tuple[str, str]]:
    """The fields of a model that the family cannot express: what they become, and what they are."""
    content = {**row.defaults, **row.fields(model)}
    names = [tensor.name for tensor in row.tensors(model)]
    back = architecture(row.config(JsonFields(Path("config.json"), content), names))
    ours = architecture(model)
    pairs = {
        field.name: (repr(getattr(back, field.name)), repr(getattr(ours, field.name)))
        for field in fields(ModelConfig)
    }
    different = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if "positions" in different:
        different.pop("max_length", None)  # follows from them
    return different


def architecture(model: ModelConfig) -> ModelConfig:
    """The model with one value for each way to write the same function of the parameters."""
    return replace(
        model,
        d_k=model.head_size,
        num_decoder_layers=model.decoder_layers,
        max_length=model.longest,
        unknown_id=0,
        dtype="float32",
        remat=False,
        attention_kernels=True,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    )


def export_pretrained(
    row: TransformersFamily,
    config: Config,
    tokenizers: tuple[Tokenizer, Tokenizer],
    load_params: Callable[[], Any],
    directory: Path,
) -> list[str]:
    """Writes a model without `differences` into an empty directory.

    Returns one line for each setting that becomes another one. UserError(CHECKPOINT) for what else
    the family cannot express, before the parameters are loaded.
    """
    source, target = tokenizers
    if source.serialized() != target.serialized():
        raise UserError(
            CHECKPOINT,
            f"two vocabularies are not supported by {row.name}: expected one for both sides",
        )
    write_description(row, config, target, directory)
    tensors = [*row.tensors(config.model)]
    names = [tensor.name for tensor in tensors]
    back, (tokenizer, _) = config_and_tokenizers(row, directory, read_fields(row, directory), names)
    for name in TEMPLATES:
        expected, got = (getattr(part.data, name) for part in (back, config))
        if got != expected:
            raise UserError(
                CHECKPOINT,
                f"data.{name} is not supported by {row.name} with this vocabulary and these "
                f"decoding settings: expected {expected!r}, got {got!r}",
            )
    if (tokenizer.kind, tokenizer.serialized()) != (target.kind, target.serialized()):
        raise UserError(
            CHECKPOINT,
            f"the vocabulary is not supported by {row.name}: expected the ids that its files "
            "express, got others; fine-tune a model of this family with training.init_from",
        )
    write_weights(directory, stored_tensors(tensors, load_params()))
    return lost_settings(row, config, back)


def write_description(
    row: TransformersFamily, config: Config, tokenizer: Tokenizer, directory: Path
) -> None:
    """Writes all files but the weights."""
    model, data, languages = config.model, config.data, tokenizer.languages
    content = {
        "model_type": row.model_type,
        "architectures": [row.architecture],
        "dtype": "float32",
        "is_encoder_decoder": True,
        **row.defaults,
        **row.fields(model),
    }
    settings = generation_settings(config.decoding, model, tokenizer)
    if data.target_start:  # the language that starts, instead of the model's token
        start = languages.get(data.target_language)
        content["decoder_start_token_id"] = settings["decoder_start_token_id"] = start
    if "bos_token_id" in content:
        settings["bos_token_id"] = content["bos_token_id"]
    if "{target}" in data.target_begin:
        if data.target_language in languages:
            settings["forced_bos_token_id"] = languages[data.target_language]
    else:
        pieces = data.target_begin or config.decoding.forced_prefix
        settings |= forced_beginning(pieces, tokenizer)
    write_json(directory / "config.json", content)
    write_json(directory / "generation_config.json", settings)
    write_files(directory, row.tokenizer_files(tokenizer, data))


def lost_settings(row: TransformersFamily, config: Config, back: Config) -> list[str]:
    """A line for each setting of a run that is another one when the directory is read `back`."""
    names = [f"data.{side}_language" for side in LANGUAGES] + [
        f"decoding.{field.name}" for field in fields(DecodingConfig) if field.name not in ENGINE
    ]
    lines = []
    for name in names:
        section, field = name.split(".")
        ours, read = (getattr(getattr(part, section), field) for part in (config, back))
        if ours != read:
            lines.append(
                f"{name}={ours!r} is not supported by {row.name}: the directory has {read!r}"
            )
    return lines
