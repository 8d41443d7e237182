"""MarianMT directories (OPUS-MT) read as runs: configuration, vocabularies and parameters.

An error names the field or tensor that is not supported. Parameters are read from safetensors only;
a pickle is never opened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from seq2seq.data.config import DataConfig
from seq2seq.data.tokenizers.marian_tokenizer import UNKNOWN, MarianTokenizer, without_appended_pad
from seq2seq.data.tokenizers.vocabulary import tokenizer_sha256
from seq2seq.interop.family import ModelFamily
from seq2seq.interop.marian_files import JsonFields, load_marian_tokenizers, read_json
from seq2seq.interop.marian_tensors import (
    check_shapes,
    config_with_start_row,
    params_from_tensors,
    remove_start_row,
)
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.runtime.json_objects import json_object
from seq2seq.storage.config import Config, DecodingConfig

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
# Fields of config.json that must have this value, which is also their default.
REQUIRED = {
    "model_type": "marian", "normalize_before": False, "normalize_embedding": False,
    "add_final_layer_norm": False, "static_position_embeddings": True, "is_encoder_decoder": True,
}  # fmt: skip
# Unsupported fields of generation_config.json (or config.json, where older versions of transformers
# put them): they must be absent, null, or have this value, which turns them off.
OFF = {
    "do_sample": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": 0.0,
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1.0,
    "suppress_tokens": [], "begin_suppress_tokens": [], "force_words_ids": [], "constraints": [],
    "sequence_bias": {}, "exponential_decay_length_penalty": None,
}  # fmt: skip
# The field in which convert.py records properties of a run that MarianMT's layout cannot express.
NOTE = "jax_transformer"
WEIGHTS = "model.safetensors"
DTYPES = ("F64", "F32", "F16", "BF16")  # of the weights, as safetensors names them
CONVERT = (
    "if you trust it, convert it with transformers: "
    "MarianMTModel.from_pretrained(DIR).save_pretrained(DIR)"
)
EXTRA_LENGTH = 50  # tokens beyond the length of the source, the default of runs


def is_marian(directory: Path) -> bool:
    """Whether a directory has a config.json of transformers, which has a `model_type`."""
    try:
        return "model_type" in json_object((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def marian_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Our model configuration, and the fields of config.json and generation_config.json.

    UserError(CHECKPOINT) that names the field if it is not supported.
    """
    path = directory / "config.json"
    content = read_json(path)
    if (directory / "generation_config.json").exists():
        content |= read_json(directory / "generation_config.json")
    fields = JsonFields(path, content)
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
    activation = fields.get("activation_function", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        fields.refuse("activation_function", ", ".join(ACTIVATIONS))
    for field, ours in (("ffn_dim", "model.d_ff"), ("attention_heads", "model.num_heads")):
        encoder = fields.integer(f"encoder_{field}", ours)
        if encoder != fields.integer(f"decoder_{field}", ours):
            fields.refuse(f"decoder_{field}", f"{encoder}, as for the encoder")
    shared = fields.boolean("share_encoder_decoder_embeddings", True)
    tied = fields.boolean("tie_word_embeddings", True)
    if shared and not tied:
        fields.refuse("tie_word_embeddings", "True with shared embeddings")
    source_size = target_size = fields.integer("vocab_size", "model.source_vocab_size")
    if not shared and fields.get("decoder_vocab_size"):
        target_size = fields.integer("decoder_vocab_size", "model.target_vocab_size")
    return ModelConfig(
        source_vocab_size=source_size, target_vocab_size=target_size,
        d_model=fields.integer("d_model", "model.d_model"), d_ff=fields["encoder_ffn_dim"],
        num_heads=fields["encoder_attention_heads"],
        num_layers=fields.integer("encoder_layers", "model.num_layers"),
        num_decoder_layers=fields.integer("decoder_layers", "model.num_decoder_layers"),
        dropout=fields.number("dropout", "model.dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", "model.attention_dropout", 0.0),
        activation_dropout=fields.number("activation_dropout", "model.activation_dropout", 0.0),
        sinusoid_layout="halves",
        max_length=fields.integer("max_position_embeddings", "model.max_length"),
        activation=ACTIVATIONS[activation], attention_bias=True, layer_norm_epsilon=1e-5,
        tied_embeddings="three-way" if shared else "two-way" if tied else "none",
        scale_embeddings=fields.boolean("scale_embedding", False), output_bias=True,
        pad_id=fields.integer("pad_token_id", "model.pad_id", 0),
        start_id=fields.integer("decoder_start_token_id", "model.start_id", 0),
        end_id=fields.integer("eos_token_id", "model.end_id", 0), unknown_id=1,
    )  # fmt: skip


def marian_decoding(
    content: dict[str, Any], model: ModelConfig, target: MarianTokenizer, directory: Path
) -> DecodingConfig:
    """The decoding defaults of generation_config.json. UserError(CHECKPOINT) that names the field.

    Its early stopping is ignored.
    """
    fields = JsonFields(directory / "generation_config.json", content)
    for field, off in OFF.items():
        if fields.get(field) not in (None, off):
            fields.refuse(field, f"{off!r} or no such field")
    if fields.get("forced_eos_token_id") not in (None, model.end_id):
        fields.refuse("forced_eos_token_id", f"eos_token_id, {model.end_id}, or no such field")
    beam_size, penalty, ngram = 1, 0.0, 0
    if fields.get("num_beams") is not None:
        beam_size = fields.integer("num_beams", "decoding.beam_size")
    if fields.get("no_repeat_ngram_size") is not None:
        ngram = fields.integer("no_repeat_ngram_size", "decoding.no_repeat_ngram", 0)
    if ngram == 1:  # there the start token counts too, here it does not
        fields.refuse("no_repeat_ngram_size", "0, at least 2, or no such field")
    min_length, max_length = _lengths(fields)
    if fields.get("length_penalty", 1.0) is not None:
        penalty = fields.number("length_penalty", "decoding.alpha", 1.0)
    return DecodingConfig(
        beam_size=beam_size,
        alpha=penalty,
        power_penalty=True,
        max_extra_length=EXTRA_LENGTH,
        max_length=max_length,
        min_length=min_length,
        no_repeat_ngram=ngram,
        forced_prefix=_forced_piece(fields, target, model.end_id),
        suppress=" ".join(_suppressed_pieces(fields, target)),
        renormalize=fields.boolean("renormalize_logits", False),
    )


def _lengths(fields: JsonFields) -> tuple[int, int]:
    """The minimum and maximum length, 0 without one.

    Ours count the end token and not the start token. `max_length` counts both, `min_length` counts
    the start token only, and `min_new_tokens` neither.
    """
    shortest = longest = 0
    if fields.get("max_new_tokens") is not None:
        longest = fields.integer("max_new_tokens", "decoding.max_length")
    elif fields.get("max_length") is not None:
        longest = fields.integer("max_length", "decoding.max_length", minimum=2) - 1
    if fields.get("min_new_tokens"):  # takes precedence
        shortest = fields.integer("min_new_tokens", "decoding.min_length", 0) + 1
    elif fields.get("min_length") is not None:
        shortest = fields.integer("min_length", "decoding.min_length", 0)
    return min(shortest, longest or shortest), longest


def _forced_piece(fields: JsonFields, target: MarianTokenizer, end_id: int) -> str:
    """The piece of forced_bos_token_id, empty without one."""
    token = fields.get("forced_bos_token_id")
    if token is None:
        return ""
    if type(token) is not int or not 0 <= token < target.size or token == end_id:
        fields.refuse("forced_bos_token_id", f"an id below {target.size} other than eos_token_id")
    return _piece(fields, "forced_bos_token_id", target, token)


def _piece(fields: JsonFields, field: str, target: MarianTokenizer, token: int) -> str:
    """The piece of an id in a field; options list pieces by name, separated by spaces."""
    piece = target.piece(token)
    if target.id_of(piece) != token or piece != "".join(piece.split()):
        fields.refuse(field, "ids of pieces without spaces")
    return piece


def _suppressed_pieces(fields: JsonFields, target: MarianTokenizer) -> Iterator[str]:
    """The pieces of bad_words_ids that the target vocabulary has."""
    words = fields.get("bad_words_ids")
    if not isinstance(words, list | None):
        fields.refuse("bad_words_ids", "a list of lists of one id")
    for ids in words or []:
        if not isinstance(ids, list) or len(ids) != 1 or type(ids[0]) is not int or ids[0] < 0:
            fields.refuse("bad_words_ids", "lists of one id each, at least 0")
        if ids[0] < target.size:
            yield _piece(fields, "bad_words_ids", target, ids[0])


def open_marian(directory: Path) -> tuple[Config, tuple[MarianTokenizer, MarianTokenizer]]:
    """The config and tokenizers as those of a run; checks the names and shapes of the tensors.

    UserError(CHECKPOINT). Touches no device and reads no weights.
    """
    model, content = marian_config(directory)
    source, target = load_marian_tokenizers(directory)
    if NOTE in content:
        source, target = without_appended_pad(source), without_appended_pad(target)
    _check_vocabularies(source, target, model, directory)
    model = replace(model, unknown_id=target.vocabulary[UNKNOWN])
    with open_weights(directory) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    stored = config_with_start_row(model) if NOTE in content else model
    check_shapes(shapes, stored, str(directory / WEIGHTS))
    length = min(DataConfig().source_length, model.max_length)
    data = DataConfig(
        joint_vocab=source.vocabulary == target.vocabulary,
        source_length=length,
        target_length=length,
        vocab_sha256="+".join(map(tokenizer_sha256, (source, target))),
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


def load_marian(directory: Path, config: ModelConfig) -> dict[str, Any]:
    """The parameters of model.safetensors. UserError(CHECKPOINT) if it cannot be read."""
    path = str(directory / WEIGHTS)
    with open_weights(directory) as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}
    if NOTE in read_json(directory / "config.json"):
        arrays = remove_start_row(arrays, config, path)
    return params_from_tensors(arrays, config, path)


@contextmanager
def open_weights(directory: Path) -> Iterator[Any]:
    """model.safetensors, open. UserError(CHECKPOINT) with the reason if it cannot be read."""
    path = directory / WEIGHTS
    try:
        with safe_open(path, framework="np") as file:
            for name in file.keys():
                if (dtype := file.get_slice(name).get_dtype()) not in DTYPES:
                    raise UserError(
                        CHECKPOINT,
                        f"{path}: {name} has dtype {dtype}: expected one of {', '.join(DTYPES)}; "
                        "quantised models are not supported",
                    )
            yield file
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(CHECKPOINT, f"{path} {_unreadable(path, error)}") from None


def _unreadable(path: Path, error: Exception) -> str:
    """Why a file of weights cannot be read, and what to do."""
    if not path.is_file():
        pickles = sorted(
            file.name
            for pattern in ("*.bin", "*.pt", "*.pth", "*.npz")
            for file in path.parent.glob(pattern)
        )
        return "is missing" + (
            f"; {pickles[0]} is not safetensors and is never opened: {CONVERT}" if pickles else ""
        )
    with open(path, "rb") as file:
        start = file.read(64)
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file; fetch it with git lfs pull"
    if start.lstrip().startswith(b"<"):
        return "is an HTML page, not the file; download it again"
    if start.startswith((b"PK", b"\x80")):
        return f"is a pickle, not safetensors, and is never opened: {CONVERT}"
    return f"cannot be read: {error}"


MARIAN = ModelFamily(
    name="MarianMT",
    matches=is_marian,
    params_path=lambda directory: directory / WEIGHTS,
    open=open_marian,
    load_params=lambda directory: load_marian(directory, marian_config(directory)[0]),
)
