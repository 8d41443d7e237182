"""MarianMT directories (OPUS-MT) as runs: their configuration, vocabularies and parameters.

What cannot be represented is refused by name. Only safetensors are read; a pickle is never opened.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from data.config import DataConfig
from data.marian_tokenizer import MarianTokenizer, without_appended_pad
from data.vocabulary import tokenizer_sha256
from interop.marian_files import load_marian_tokenizers, read_json
from interop.marian_tensors import appended, check_shapes, from_marian, remove_start
from model.config import ModelConfig
from runtime.errors import CHECKPOINT, UserError
from storage.config import Config, DecodingConfig

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
# Fields of config.json that must have one value, which is also what they are where they are absent.
REQUIRED = {
    "model_type": "marian", "normalize_before": False, "normalize_embedding": False,
    "add_final_layer_norm": False, "static_position_embeddings": True, "is_encoder_decoder": True,
}  # fmt: skip
# Fields of generation_config.json (or config.json, where they used to be) that are not mapped must
# be absent or say "off", which is this value.
OFF = {
    "do_sample": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": 0.0,
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "guidance_scale": 1.0,
    "suppress_tokens": [], "begin_suppress_tokens": [], "force_words_ids": [], "constraints": [],
    "sequence_bias": {}, "forced_bos_token_id": None, "exponential_decay_length_penalty": None,
}  # fmt: skip
# Where convert.py notes what a run was that MarianMT's layout cannot tell.
NOTE = "jax_transformer"
WEIGHTS = "model.safetensors"
CONVERT = (
    "where you trust it, convert it with transformers: "
    "MarianMTModel.from_pretrained(DIR).save_pretrained(DIR)"
)
EXTRA_LENGTH = 50  # beyond the source, as for runs


def is_marian(directory: Path) -> bool:
    """Whether a directory has a config.json of transformers, which says its `model_type`."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model_type" in config


def marian_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Our configuration of its model, and its config.json with generation_config.json's fields.

    UserError(CHECKPOINT) that names the field for what cannot be represented.
    """
    path, there = directory / "config.json", read_json(directory / "config.json")
    if (directory / "generation_config.json").exists():
        there |= read_json(directory / "generation_config.json")

    def refuse(field: str, expected: str) -> None:
        raise UserError(
            CHECKPOINT,
            f"{path}: {field}={there.get(field)!r} cannot be represented; expected {expected}",
        )

    def number(field: str, least: int = 1) -> int:
        if type(there.get(field)) is not int or there[field] < least:
            refuse(field, f"a whole number from {least}")
        return there[field]

    for field, value in REQUIRED.items():
        if there.get(field, value) != value:
            refuse(field, repr(value))
    if there.get("activation_function", "gelu") not in ACTIVATIONS:
        refuse("activation_function", ", ".join(ACTIVATIONS))
    for field in ("ffn_dim", "attention_heads"):
        if number(f"encoder_{field}") != number(f"decoder_{field}"):
            refuse(f"decoder_{field}", f"the encoder's, {there[f'encoder_{field}']}")
    shared = there.get("share_encoder_decoder_embeddings", True)
    tied = there.get("tie_word_embeddings", True)
    if shared and not tied:
        refuse("tie_word_embeddings", "True where the embeddings are shared")
    size = number("vocab_size")
    target_size = (
        size if shared or not there.get("decoder_vocab_size") else (number("decoder_vocab_size"))
    )
    config = ModelConfig(
        source_vocab_size=size, target_vocab_size=target_size,
        d_model=number("d_model"), d_ff=number("encoder_ffn_dim"),
        num_heads=number("encoder_attention_heads"), num_layers=number("encoder_layers"),
        num_decoder_layers=number("decoder_layers"), dropout=there.get("dropout", 0.1),
        sinusoid_layout="halves", max_length=number("max_position_embeddings"),
        activation=ACTIVATIONS[there.get("activation_function", "gelu")], attention_bias=True,
        layer_norm_epsilon=1e-5,
        tied_embeddings="three-way" if shared else "two-way" if tied else "none",
        scale_embeddings=bool(there.get("scale_embedding", False)), output_bias=True,
        pad_id=number("pad_token_id", 0), start_id=number("decoder_start_token_id", 0),
        end_id=number("eos_token_id", 0), unknown_id=1,
    )  # fmt: skip
    if NOTE in there:
        try:
            config = replace(config, **there[NOTE])
        except TypeError:
            refuse(NOTE, "what convert.py writes")
    try:
        config.validate()
    except (ValueError, TypeError) as error:
        raise UserError(CHECKPOINT, f"{path} cannot be represented: {error}") from None
    return config, there


def marian_decoding(
    there: dict[str, Any], model: ModelConfig, target: MarianTokenizer, where: str
) -> DecodingConfig:
    """How its generation_config.json would have it translate. UserError(CHECKPOINT), named.

    Its `max_length` counts the start token, ours does not. Its early stopping is ours, exact.
    """

    def refuse(field: str, expected: str) -> None:
        raise UserError(
            CHECKPOINT,
            f"{where}/generation_config.json: {field}={there[field]!r} "
            f"cannot be represented; expected {expected}, or no such field",
        )

    for field, off in OFF.items():
        if there.get(field) not in (None, off):
            refuse(field, repr(off))
    for field in ("num_beams", "max_length", "max_new_tokens", "length_penalty"):
        kinds = (int, float) if field == "length_penalty" else (int,)
        if type(there.get(field, 1)) not in (*kinds, type(None)) or (there.get(field) or 0) < 0:
            refuse(field, "a number that is not negative")
    if there.get("forced_eos_token_id") not in (None, model.end_id):
        refuse("forced_eos_token_id", f"eos_token_id, {model.end_id}")
    suppress = []
    for words in there.get("bad_words_ids") or []:
        piece = target.piece(words[0]) if len(words) == 1 else ""
        if not piece or piece != "".join(piece.split()):
            refuse("bad_words_ids", "single pieces without spaces")
        if target.id_of(piece) is not None and words[0] < model.target_vocab_size:
            suppress.append(piece)
    longest = there.get("max_new_tokens") or (there.get("max_length") or 1) - 1
    return DecodingConfig(
        beam_size=there.get("num_beams") or 1,
        alpha=float(there.get("length_penalty") or 0.0) if "length_penalty" in there else 1.0,
        power_penalty=True,
        max_extra_length=EXTRA_LENGTH,
        max_length=longest,
        suppress=" ".join(suppress),
        renormalize=bool(there.get("renormalize_logits")),
    )


def check_marian(directory: Path) -> tuple[Config, tuple[MarianTokenizer, MarianTokenizer]]:
    """Its config and tokenizers as those of a run, with its tensors checked by name and shape.

    UserError(CHECKPOINT). Touches no device and reads no weights.
    """
    model, there = marian_config(directory)
    tokenizers = load_marian_tokenizers(directory)
    if NOTE in there:
        tokenizers = tuple(map(without_appended_pad, tokenizers))
    expected = model.source_vocab_size, model.target_vocab_size
    got = tuple(one.size for one in tokenizers)
    if got != expected:
        raise UserError(
            CHECKPOINT,
            f"{directory}: the vocabularies have {got[0]} and {got[1]} "
            f"entries, config.json says {expected[0]} and {expected[1]}",
        )
    ends = tuple(one.id_of("</s>") for one in tokenizers)
    if ends != (model.end_id,) * 2:
        raise UserError(
            CHECKPOINT,
            f"{directory}: </s> has the ids {ends[0]} and {ends[1]} in the "
            f"vocabularies, eos_token_id={model.end_id} in config.json",
        )
    model = replace(model, unknown_id=tokenizers[1].id_of("<unk>"))
    with open_weights(directory) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    check_shapes(shapes, appended(model) if NOTE in there else model, str(directory / WEIGHTS))
    longest = min(DataConfig().source_length, model.max_length)
    data = DataConfig(
        joint_vocab=tokenizers[0].vocabulary == tokenizers[1].vocabulary,
        source_length=longest,
        target_length=longest,
        vocab_sha256="+".join(map(tokenizer_sha256, tokenizers)),
    )
    decoding = marian_decoding(there, model, tokenizers[1], str(directory))
    config = Config(model=model, data=data, decoding=decoding)
    config.validate()
    return config, tokenizers


def load_marian(directory: Path, config: ModelConfig) -> dict[str, Any]:
    """The parameters of model.safetensors. UserError(CHECKPOINT) where it cannot be read."""
    path = str(directory / WEIGHTS)
    with open_weights(directory) as file:
        there = {name: file.get_tensor(name) for name in file.keys()}
    if NOTE in read_json(directory / "config.json"):
        there = remove_start(there, config, path)
    return from_marian(there, config, path)


@contextmanager
def open_weights(directory: Path) -> Iterator[Any]:
    """model.safetensors, open. UserError(CHECKPOINT) that says what is there instead."""
    path = directory / WEIGHTS
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(CHECKPOINT, f"{path} {_instead(path, error)}") from None


def _instead(path, error):
    if not path.is_file():
        pickles = sorted(
            one.name
            for ending in ("*.bin", "*.pt", "*.pth", "*.npz")
            for one in path.parent.glob(ending)
        )
        return "is missing" + (
            f"; {pickles[0]} is no safetensors and never opened: {CONVERT}" if pickles else ""
        )
    with open(path, "rb") as file:
        start = file.read(64)
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file; fetch it with git lfs pull"
    if start.lstrip().startswith(b"<"):
        return "is an HTML page, not the file; download it again"
    if start.startswith((b"PK", b"\x80")):
        return f"is a pickle under another name and never opened: {CONVERT}"
    return f"cannot be read: {error}"
