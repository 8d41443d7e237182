"""MarianMT directories (OPUS-MT) read as runs: configuration, vocabularies and parameters.

Parameters are read as weight_files.py describes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, DecodingConfig
from seq2seq.data.tokenizers.marian_tokenizer import UNKNOWN, MarianTokenizer, without_appended_pad
from seq2seq.data.tokenizers.vocabulary import vocabulary_sha256
from seq2seq.model.config import ModelConfig
from seq2seq.model.mesh import Placer
from seq2seq.pretrained.common_fields import common_choices, supported_fields
from seq2seq.pretrained.generation import common_decoding
from seq2seq.pretrained.json_fields import JsonFields, read_json
from seq2seq.pretrained.marian_files import load_marian_tokenizers
from seq2seq.pretrained.marian_tensors import (
    config_with_start_row,
    read_with_start_row,
    redundant_tensors,
    tensors,
)
from seq2seq.pretrained.tensors import places_in, read_params
from seq2seq.pretrained.weight_files import OpenWeights, WeightFiles
from seq2seq.runtime.errors import CHECKPOINT, UserError

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
# Fields of config.json that must have this value, which is also their default.
REQUIRED = {
    "model_type": "marian", "normalize_before": False, "normalize_embedding": False,
    "add_final_layer_norm": False, "static_position_embeddings": True, "is_encoder_decoder": True,
}  # fmt: skip
# The field in which convert.py records properties of a run that MarianMT's layout cannot express.
NOTE = "jax_transformer"
EXTRA_LENGTH = 50  # tokens beyond the length of the source, the default of runs


def marian_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Our model configuration, and the fields of config.json and generation_config.json."""
    path = directory / "config.json"
    content = read_json(path)
    if (directory / "generation_config.json").exists():
        content |= read_json(directory / "generation_config.json")
    fields = supported_fields(JsonFields(path, content))
    config = _model_config(fields)
    if NOTE in fields:
        try:
            config = replace(config, **fields[NOTE])
        except TypeError:
            fields.refuse(NOTE, "the object that convert.py writes")
    try:
        config.validate()
    except (ValueError, TypeError) as error:
        raise UserError(CHECKPOINT, f"{path} is not supported: {error}") from None
    return config, content


def _model_config(fields: JsonFields) -> ModelConfig:
    for field, value in REQUIRED.items():
        fields.require(field, value)
    shared = fields.boolean("share_encoder_decoder_embeddings", True)
    tied = fields.boolean("tie_word_embeddings", True)
    if shared and not tied:
        fields.refuse("tie_word_embeddings", "True with shared embeddings")
    source_size = target_size = fields.integer("vocab_size", "model.source_vocab_size")
    if not shared and fields.get("decoder_vocab_size"):
        target_size = fields.integer("decoder_vocab_size", "model.target_vocab_size")
    return ModelConfig(
        source_vocab_size=source_size,
        target_vocab_size=target_size,
        tied_embeddings="three-way" if shared else "two-way" if tied else "none",
        sinusoid_layout="halves",
        output_bias=True,
        start_id=fields.integer("decoder_start_token_id", "model.start_id", 0),
        unknown_id=1,
        **common_choices(fields, ACTIVATIONS),
    )


def marian_decoding(
    content: dict[str, Any], model: ModelConfig, target: MarianTokenizer, directory: Path
) -> DecodingConfig:
    """The decoding defaults of generation_config.json. Its early stopping is ignored."""
    fields = JsonFields(directory / "generation_config.json", content)
    return common_decoding(fields, model, target, EXTRA_LENGTH)


def open_marian(
    directory: Path, open_weights: OpenWeights = WeightFiles
) -> tuple[Config, tuple[MarianTokenizer, MarianTokenizer]]:
    """The config and tokenizers as those of a run; checks the names and shapes of the tensors.

    Touches no device and reads no weights.
    """
    model, content = marian_config(directory)
    source, target = load_marian_tokenizers(directory)
    if NOTE in content:
        source, target = without_appended_pad(source), without_appended_pad(target)
    _check_vocabularies(source, target, model, directory)
    model = replace(model, unknown_id=target.vocabulary[UNKNOWN])
    weights = open_weights(directory, "MarianMTModel")
    stored = config_with_start_row(model) if NOTE in content else model
    places_in(tensors(stored), redundant_tensors(stored), weights)
    length = min(DataConfig().source_length, model.max_length)
    data = DataConfig(
        joint_vocab=source.vocabulary == target.vocabulary,
        source_length=length,
        target_length=length,
        vocab_sha256=vocabulary_sha256((source, target)),
    )
    decoding = marian_decoding(content, model, target, directory)
    config = Config(model=model, data=data, decoding=decoding)
    config.validate()
    return config, (source, target)


def _check_vocabularies(
    source: MarianTokenizer, target: MarianTokenizer, model: ModelConfig, directory: Path
) -> None:
    expected = model.source_vocab_size, model.target_vocab_size
    if (source.size, target.size) != expected:
        raise UserError(
            CHECKPOINT,
            f"{directory}: the vocabularies do not fit config.json: expected {expected[0]} and "
            f"{expected[1]} entries, got {source.size} and {target.size}",
        )
    ends = source.id_of("</s>"), target.id_of("</s>")
    if ends != (model.end_id, model.end_id):
        raise UserError(
            CHECKPOINT,
            f"{directory}: the vocabularies do not fit config.json: expected </s> with "
            f"eos_token_id={model.end_id}, got the ids {ends[0]} and {ends[1]}",
        )


def load_marian(
    directory: Path,
    config: ModelConfig,
    placer: Placer | None = None,
    open_weights: OpenWeights = WeightFiles,
) -> dict[str, Any]:
    """The parameters, see `read_params`."""
    weights = open_weights(directory, "MarianMTModel")
    if NOTE in read_json(directory / "config.json"):
        params = read_with_start_row(weights, config)
        return params if placer is None else placer.place_all(params)
    return read_params(tensors(config), redundant_tensors(config), weights, config, placer)
