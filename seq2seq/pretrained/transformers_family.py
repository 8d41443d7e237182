"""Families of models of transformers: a row describes each, and these functions read any of them.

A row (`TransformersFamily`) has all that is special about a family: how config.json becomes a
ModelConfig, which tensors are which parameters, how the tokenizer is read, and which pieces
surround a text. transformers_export.py is the inverse.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, DecodingConfig
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import vocabulary_sha256
from seq2seq.model.config import ModelConfig
from seq2seq.model.mesh import Placer
from seq2seq.pretrained.common_fields import supported_fields
from seq2seq.pretrained.generation import decoding_of, generation_fields
from seq2seq.pretrained.json_fields import JsonFields, read_json
from seq2seq.pretrained.tensors import Redundant, Tensor, places_in, read_params
from seq2seq.pretrained.tokenizer_export import Files
from seq2seq.pretrained.tokenizer_files import check_tokenizer_class
from seq2seq.pretrained.weight_files import OpenWeights, WeightFiles
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.runtime.json_objects import json_object

OUTPUT, TIE = "lm_head.weight", "tie_word_embeddings"


class Template(NamedTuple):
    """The pieces around a text; {source} and {target} stand for those of the languages."""

    source_begin: str = ""
    source_end: str = ""
    target_begin: str = ""
    target_start: str = ""  # the piece that starts decoding, instead of model.start_id


@dataclass(frozen=True, kw_only=True)
class TransformersFamily:
    """A row: one family."""

    model_type: str  # of config.json
    name: str  # for error messages
    architecture: str  # the class of transformers
    # The ModelConfig of config.json, in a file that has tensors of these names.
    config: Callable[[JsonFields, Iterable[str]], ModelConfig]
    fields: Callable[[ModelConfig], Mapping[str, Any]]  # the inverse of `config`
    tensors: Callable[[ModelConfig], Iterable[Tensor]]  # of all parameters
    redundant: Callable[[ModelConfig], Redundant]  # what a file may have besides them
    # The classes of transformers, without "Fast", that add the same pieces to a text.
    tokenizer_classes: tuple[str, ...]
    # The tokenizer of a directory whose embedding has this many rows.
    tokenizer: Callable[[Path, int], Tokenizer]
    vocabulary: tuple[str, ...]  # the files of the vocabulary that `tokenizer` reads
    # The inverse: the contents of files by name. UserError(CHECKPOINT) for another kind of
    # tokenizer.
    tokenizer_files: Callable[[Tokenizer, DataConfig], Files]
    # The pieces around a text, by the generation settings, the directory and the tokenizer.
    template: Callable[[JsonFields, Path, Tokenizer], Template]
    # Defaults of fields of config.json that a file need not state.
    defaults: Mapping[str, Any]


def model_type(directory: Path) -> str | None:
    """The field of config.json that names the family of transformers, None without one."""
    try:
        fields = json_object((directory / "config.json").read_text(encoding="utf-8"))
        return str(fields["model_type"])
    except (OSError, ValueError, KeyError):
        return None


def read_fields(row: TransformersFamily, directory: Path) -> JsonFields:
    """The fields of config.json with the row's defaults; the token ids of generation_config.json
    have precedence, because a search uses them. null is absent."""
    path = directory / "config.json"
    content = {name: value for name, value in read_json(path).items() if value is not None}
    if (directory / "generation_config.json").exists():
        generation = read_json(directory / "generation_config.json")
        ids = ("eos_token_id", "decoder_start_token_id", "pad_token_id", "bos_token_id")
        content |= {name: generation[name] for name in ids if generation.get(name) is not None}
    fields = JsonFields(path, {**row.defaults, **content})
    fields.require("is_encoder_decoder", True)
    return supported_fields(fields)


def model_of(row: TransformersFamily, fields: JsonFields, names: Iterable[str]) -> ModelConfig:
    """The valid ModelConfig of config.json."""
    model = row.config(fields, names)
    try:
        model.validate()
    except (ValueError, TypeError) as error:
        raise UserError(CHECKPOINT, f"{fields.path} is not supported: {error}") from None
    return model


def with_stored_tying(
    row: TransformersFamily, fields: JsonFields, weights: WeightFiles
) -> JsonFields:
    """The fields without tied embeddings if a file has an output matrix with other values than the
    table that it would be tied to: the tensors decide, as in transformers 5."""
    model = model_of(row, fields, weights.shapes)
    tied = next((tensor for tensor in row.tensors(model) if OUTPUT in tensor.copies), None)
    if tied is None or not {tied.name, OUTPUT} <= weights.shapes.keys():
        return fields
    if np.array_equal(weights.read(tied.name), weights.read(OUTPUT), equal_nan=True):
        return fields
    return fields.updated({TIE: False})


def separate_output(directory: Path, model: ModelConfig) -> Iterator[str]:
    """A line if `with_stored_tying` has changed what config.json states."""
    if model.tied_embeddings == "none" and read_json(directory / "config.json").get(TIE, True):
        yield (
            f"{directory}: {OUTPUT} has other values than the embeddings: it is used, although "
            f"config.json has {TIE}=true"
        )


def open_pretrained(
    row: TransformersFamily, directory: Path, open_weights: OpenWeights = WeightFiles
) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and tokenizers as those of a run; checks the names and shapes of the tensors.

    Touches no device, and reads no weights but a second copy of a table.
    """
    weights = open_weights(directory, "AutoModelForSeq2SeqLM")
    fields = with_stored_tying(row, read_fields(row, directory), weights)
    config, tokenizers = config_and_tokenizers(row, directory, fields, weights.shapes)
    places_in(row.tensors(config.model), row.redundant(config.model), weights)
    return config, tokenizers


def config_and_tokenizers(
    row: TransformersFamily, directory: Path, fields: JsonFields, names: Iterable[str]
) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and tokenizers of a directory with these fields and tensors of these names."""
    model = model_of(row, fields, names)
    check_tokenizer_class(directory, row.tokenizer_classes)
    tokenizer = row.tokenizer(directory, model.target_vocab_size)
    unknown = tokenizer.id_of("<unk>")
    model = replace(model, unknown_id=model.unknown_id if unknown is None else unknown)
    settings = generation_fields(directory, fields)
    decoding = decoding_of(settings, model, tokenizer)
    length = min(model.max_length, model.longest)
    data = DataConfig(
        source_length=length,
        target_length=length,
        vocab_sha256=vocabulary_sha256((tokenizer, tokenizer)),
    )
    template = row.template(settings, directory, tokenizer)
    data, decoding = with_template(data, decoding, template, settings, tokenizer, model.start_id)
    config = Config(model=model, data=data, decoding=decoding)
    config.validate()
    return config, (tokenizer, tokenizer)


def with_template(
    data: DataConfig,
    decoding: DecodingConfig,
    template: Template,
    settings: JsonFields,
    tokenizer: Tokenizer,
    start_id: int,
) -> tuple[DataConfig, DecodingConfig]:
    """The configs with the pieces around texts. A forced first token that is a language becomes
    the target language. One that begins all targets is not forced a second time."""
    values = template._asdict()
    forced = settings.get("forced_bos_token_id")
    codes = {token: code for code, token in tokenizer.languages.items()}
    is_language = forced in codes and template.target_begin == "{target}"
    if is_language:
        values["target_language"] = codes[forced]
    if template.target_start:  # of a model that translates into one language
        values["target_language"] = codes.get(start_id, "")
    if is_language or template.target_begin == decoding.forced_prefix:
        decoding = replace(decoding, forced_prefix="")
    return replace(data, **values), decoding


def load_pretrained(
    row: TransformersFamily,
    directory: Path,
    placer: Placer | None = None,
    open_weights: OpenWeights = WeightFiles,
) -> dict[str, Any]:
    """The parameters, see `read_params`."""
    weights = open_weights(directory, "AutoModelForSeq2SeqLM")
    fields = with_stored_tying(row, read_fields(row, directory), weights)
    model = model_of(row, fields, weights.shapes)
    return read_params(row.tensors(model), row.redundant(model), weights, model, placer)
