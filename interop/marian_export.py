"""A run as a MarianMT directory: what transformers and CTranslate2 load.

What that layout cannot express is refused by name. Three things are put another way, exactly:
absent biases become zeros, interleaved sinusoids become halves by one order of all features, and a
start token with an embedding moves into the table of positions (`append_start`).
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from data.marian_tokenizer import OLD_PAD, PAD, MarianTokenizer, with_appended_pad
from data.tokenizer import SentencePieceTokenizer, Tokenizer
from interop.marian import ACTIVATIONS, NOTE, REQUIRED, WEIGHTS
from interop.marian_tensors import append_start, appended, to_marian
from model.config import ModelConfig
from runtime.errors import CHECKPOINT, UserError
from runtime.files import write_atomic
from storage.config import Config, DecodingConfig

EXPRESSIBLE = {"norm": "post", "positions": "sinusoidal", "layer_norm_epsilon": 1e-5}
# The axis of our parameters that holds the model's features, where there is one; the bias of the
# logits, an "output_bias" too, has none.
FEATURES = {
    "table": -1,
    "query": 0,
    "key": 0,
    "value": 0,
    "output": -1,
    "output_bias": -1,
    "inner": 0,
    "outer": -1,
    "outer_bias": -1,
    "scale": -1,
    "bias": -1,
}
# Of config.decoding: what generation_config.json says too, and what is of our engine.
CARRIED = {"beam_size", "alpha", "power_penalty", "max_length", "suppress", "renormalize"}
ENGINE = {"batch_size", "nbest", "horizon", "max_extra_length"}


def check_expressible(config: Config, tokenizers: tuple[Tokenizer, Tokenizer], run: Path) -> None:
    """UserError(CHECKPOINT) that names what MarianMT cannot express."""
    for name, value in EXPRESSIBLE.items():
        if getattr(config.model, name) != value:
            raise UserError(
                CHECKPOINT,
                f"{run}: MarianMT cannot express model.{name}="
                f"{getattr(config.model, name)!r}; it has {value!r} only",
            )
    for tokenizer in tokenizers:
        if not isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
            raise UserError(
                CHECKPOINT,
                f"{run}: MarianMT cannot express a vocabulary of "
                f"{tokenizer.kind}; it has SentencePiece's (unigram or bpe) only",
            )
        if tokenizer.id_of(OLD_PAD) is not None:
            raise UserError(
                CHECKPOINT,
                f"{run}: the piece {OLD_PAD!r} is in the way; MarianMT "
                "needs that name for the run's padding",
            )


def export_marian(
    config: Config,
    tokenizers: tuple[Tokenizer, Tokenizer],
    params: Mapping[str, Any],
    directory: Path,
) -> list[str]:
    """Write what `check_expressible` let pass into an empty directory.

    Returns the defaults of decoding that have no counterpart there, a line each.
    """
    if config.model.sinusoid_layout == "interleaved":
        params = reordered(params, np.argsort(np.arange(config.model.d_model) % 2, kind="stable"))
    model = replace(config.model, sinusoid_layout="halves", attention_bias=True, output_bias=True)
    there, extra = to_marian(params, model), {}
    tokenizers = tuple(map(as_marian, tokenizers))
    suppressed = [tokenizers[1].id_of(piece) for piece in config.decoding.suppress.split()]
    if not starts_with_zeros(params, model, tokenizers):
        there, before = append_start(there, model), model
        model = appended(model)
        tokenizers = tuple(
            with_appended_pad(one, size - 1)
            for one, size in zip(
                tokenizers, (model.source_vocab_size, model.target_vocab_size), strict=True
            )
        )
        kept = "source_vocab_size", "target_vocab_size", "pad_id", "start_id"
        extra = {
            "bos_token_id": before.start_id,
            NOTE: {name: getattr(before, name) for name in kept},
        }
    write_atomic(directory / WEIGHTS, save(there, {"format": "pt"}))
    ids = {
        "pad_token_id": model.pad_id,
        "eos_token_id": model.end_id,
        "decoder_start_token_id": model.start_id,
        "forced_eos_token_id": model.end_id,
    }
    write_json(directory / "config.json", marian_fields(model) | ids | extra)
    generation, lost = generation_fields(config.decoding, model)
    forbidden = {"bad_words_ids": [[token] for token in sorted({*suppressed, model.pad_id})]}
    write_json(directory / "generation_config.json", ids | generation | forbidden)
    write_vocabularies(directory, tokenizers, model)
    return lost


def reordered(params: Mapping[str, Any], order: np.ndarray) -> dict[str, Any]:
    """The same function with the features of the model in another order."""

    def moved(tree, path):
        if isinstance(tree, Mapping):
            return {name: moved(inside, (*path, name)) for name, inside in tree.items()}
        axis = None if path == ("output_bias",) else FEATURES.get(path[-1])
        return tree if axis is None else np.take(tree, order, axis)

    return moved(params, ())


def starts_with_zeros(
    params: Mapping[str, Any], model: ModelConfig, tokenizers: tuple[MarianTokenizer, ...]
) -> bool:
    """Whether decoding starts as Marian's does: with a last row of zeros, which is padding too."""
    last = model.target_vocab_size - 1
    sizes = {one.id_of(PAD) for one in tokenizers} | {model.source_vocab_size - 1}
    return (
        model.start_id == model.pad_id == last
        and sizes == {last}
        and not np.any(params["target_embedding"]["table"][last])
    )


def as_marian(tokenizer: Tokenizer) -> MarianTokenizer:
    """A SentencePiece vocabulary with the ids that its model has anyway."""
    if isinstance(tokenizer, MarianTokenizer):
        return tokenizer
    pieces = {tokenizer.piece(i): i for i in range(tokenizer.size)}
    return MarianTokenizer(tokenizer.serialized(), pieces)


def marian_fields(model: ModelConfig) -> dict[str, Any]:
    """config.json without the token ids: `training.marian.marian_config` backwards."""
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    both = {"ffn_dim": model.d_ff, "attention_heads": model.num_heads, "layerdrop": 0.0}
    return {
        **REQUIRED,
        "architectures": ["MarianMTModel"],
        "dtype": "float32",
        "vocab_size": model.source_vocab_size,
        "decoder_vocab_size": model.target_vocab_size,
        "d_model": model.d_model,
        "encoder_layers": model.num_layers,
        "decoder_layers": model.decoder_layers,
        "dropout": model.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": activations[model.activation],
        "max_position_embeddings": model.max_length,
        "scale_embedding": model.scale_embeddings,
        "share_encoder_decoder_embeddings": model.tied_embeddings == "three-way",
        "tie_word_embeddings": model.tied_embeddings != "none",
        **{
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in both.items()
        },
    }


def generation_fields(
    decoding: DecodingConfig, model: ModelConfig
) -> tuple[dict[str, Any], list[str]]:
    """generation_config.json without token ids, and what it cannot say, a line each."""
    lost = [
        f"decoding.{one.name}={getattr(decoding, one.name)!r} has no counterpart"
        for one in fields(DecodingConfig)
        if one.name not in CARRIED | ENGINE and getattr(decoding, one.name) != one.default
    ]
    alpha = decoding.alpha
    if alpha and not decoding.power_penalty:
        alpha = 1.0
        lost.append(
            f"the length penalty ((5 + length) / 6)^{decoding.alpha:g} has no counterpart: "
            "generation_config.json says length^1"
        )
    longest = decoding.max_length + 1 if decoding.max_length else model.max_length
    return {
        "num_beams": decoding.beam_size,
        "length_penalty": alpha,
        "max_length": longest,
        "renormalize_logits": decoding.renormalize,
    }, lost


def write_vocabularies(
    directory: Path, tokenizers: tuple[MarianTokenizer, ...], model: ModelConfig
) -> None:
    """The .spm and vocabulary files, and the tokenizer_config.json that says which there are."""
    source, target = tokenizers
    separate = source.vocabulary != target.vocabulary
    write_atomic(directory / "source.spm", source.model)
    write_atomic(directory / "target.spm", target.model)
    write_json(directory / "vocab.json", source.vocabulary)
    if separate:
        write_json(directory / "target_vocab.json", target.vocabulary)
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "separate_vocabs": separate,
            "model_max_length": model.max_length,
        },
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
