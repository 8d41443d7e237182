"""A run exported as a MarianMT directory, which transformers and CTranslate2 load.

An error names what that layout cannot express. Three differences are converted exactly: absent
biases become zeros, interleaved sinusoids become halves by a permutation of the features, and a
start token with an embedding moves into the table of positions (`append_start_row`).
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from seq2seq.data.tokenizers.marian_tokenizer import (
    OLD_PAD,
    PAD,
    MarianTokenizer,
    with_appended_pad,
)
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.interop.marian import ACTIVATIONS, NOTE, REQUIRED
from seq2seq.interop.marian_tensors import (
    append_start_row,
    config_with_start_row,
    tensors_from_params,
)
from seq2seq.interop.weight_files import WEIGHTS
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.runtime.files import write_atomic
from seq2seq.storage.config import Config, DecodingConfig

# The values of each field that MarianMT has or that can be converted to it.
EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    "kind": ("transformer",),
    "norm": ("post",),
    "norm_function": ("layer",),
    "positions": ("sinusoidal",),
    "sinusoid_layout": ("interleaved", "halves"),
    "activation": tuple(ACTIVATIONS.values()),
    "gated_feed_forward": (False,),
    "scale_scores": (True,),
    "embedding_norm": (False,),
    "scale_logits": (False,),
    "tied_embeddings": ("three-way", "two-way", "none"),
    "layer_norm_epsilon": (1e-5,),
}
# The axis of our parameters that holds the model's features. The bias of the logits, also named
# "output_bias", has none.
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
# Fields of config.decoding: those that generation_config.json has too, and those of our engine.
# `forced_eos_token_id` is always written, and costs nothing there.
CARRIED = {
    "beam_size", "alpha", "power_penalty", "max_length", "min_length", "no_repeat_ngram",
    "suppress", "renormalize", "forced_prefix", "forced_end", "stop",
}  # fmt: skip
ENGINE = {"batch_size", "nbest", "horizon", "max_extra_length"}


def check_expressible(config: Config, tokenizers: tuple[Tokenizer, Tokenizer], run: Path) -> None:
    """UserError(CHECKPOINT) that names what MarianMT cannot express."""
    model = config.model
    widths = {"d_k": (0, model.d_model // model.num_heads)}
    for name, values in (EXPRESSIBLE | widths).items():
        got = getattr(model, name)
        if got not in values:
            expected = " or ".join(dict.fromkeys(map(repr, values)))
            raise UserError(
                CHECKPOINT,
                f"{run}: model.{name}={got!r} is not supported by MarianMT: expected {expected}",
            )
    for tokenizer in tokenizers:
        if not isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
            raise UserError(
                CHECKPOINT,
                f"{run}: a vocabulary of {tokenizer.kind} is not supported by MarianMT: expected "
                "unigram or bpe (SentencePiece)",
            )
        if tokenizer.id_of(OLD_PAD) is not None:
            raise UserError(
                CHECKPOINT,
                f"{run}: the vocabulary has the piece {OLD_PAD!r}, which the export reserves for "
                "the run's padding",
            )


def export_marian(
    config: Config,
    tokenizers: tuple[Tokenizer, Tokenizer],
    params: Mapping[str, Any],
    directory: Path,
) -> list[str]:
    """Writes a model that passes `check_expressible` into an empty directory.

    Returns one line for each decoding default that MarianMT cannot express.
    """
    if config.model.sinusoid_layout == "interleaved":
        even_first = np.argsort(np.arange(config.model.d_model) % 2, kind="stable")
        params = permute_features(params, even_first)
    model = replace(config.model, sinusoid_layout="halves", attention_bias=True, output_bias=True)
    arrays = tensors_from_params(params, model)
    note: dict[str, Any] = {}
    source, target = map(as_marian, tokenizers)
    suppressed = [target.vocabulary[piece] for piece in config.decoding.suppress.split()]
    if not starts_with_zeros(params, model, (source, target)):
        recorded = "source_vocab_size", "target_vocab_size", "pad_id", "start_id"
        note = {
            "bos_token_id": model.start_id,
            NOTE: {name: getattr(model, name) for name in recorded},
        }
        arrays, model = append_start_row(arrays, model), config_with_start_row(model)
        source = with_appended_pad(source, model.source_vocab_size - 1)
        target = with_appended_pad(target, model.target_vocab_size - 1)
    write_atomic(directory / WEIGHTS, save(arrays, {"format": "pt"}))
    ids = {
        "pad_token_id": model.pad_id,
        "eos_token_id": model.end_id,
        "decoder_start_token_id": model.start_id,
        "forced_eos_token_id": model.end_id,
    }
    write_json(directory / "config.json", marian_fields(model) | ids | note)
    generation, lost = generation_fields(config.decoding, model)
    forbidden = {"bad_words_ids": [[token] for token in sorted({*suppressed, model.pad_id})]}
    forced = [target.vocabulary[piece] for piece in config.decoding.forced_prefix.split()]
    if len(forced) == 1:
        generation["forced_bos_token_id"] = forced[0]
    write_json(directory / "generation_config.json", ids | generation | forbidden)
    write_marian_tokenizers(directory, (source, target), model)
    return lost


def permute_features(params: Mapping[str, Any], order: np.ndarray) -> dict[str, Any]:
    """Parameters of the same function with the features of the model in another order."""

    def permute(tree: Any, path: tuple[str, ...]) -> Any:
        if isinstance(tree, Mapping):
            return {name: permute(child, (*path, name)) for name, child in tree.items()}
        axis = None if path == ("output_bias",) else FEATURES.get(path[-1])
        return tree if axis is None else np.take(tree, order, axis)

    return permute(params, ())


def starts_with_zeros(
    params: Mapping[str, Any],
    model: ModelConfig,
    tokenizers: tuple[MarianTokenizer, MarianTokenizer],
) -> bool:
    """Whether decoding starts as in Marian: with the last row, which is zero and also padding."""
    last = model.target_vocab_size - 1
    pads = {tokenizer.id_of(PAD) for tokenizer in tokenizers} | {model.source_vocab_size - 1}
    return (
        model.start_id == model.pad_id == last
        and pads == {last}
        and not np.any(params["target_embedding"]["table"][last])
    )


def as_marian(tokenizer: Tokenizer) -> MarianTokenizer:
    """A SentencePiece vocabulary as a Marian one with the same ids."""
    if isinstance(tokenizer, MarianTokenizer):
        return tokenizer
    pieces = {tokenizer.piece(i): i for i in range(tokenizer.size)}
    return MarianTokenizer(tokenizer.serialized(), pieces)


def marian_fields(model: ModelConfig) -> dict[str, Any]:
    """config.json without the token ids: the inverse of `marian_config` in marian.py."""
    activations = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    per_side = {"ffn_dim": model.d_ff, "attention_heads": model.num_heads, "layerdrop": 0.0}
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
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "activation_function": activations[model.activation],
        "max_position_embeddings": model.max_length,
        "scale_embedding": model.scale_embeddings,
        "share_encoder_decoder_embeddings": model.tied_embeddings == "three-way",
        "tie_word_embeddings": model.tied_embeddings != "none",
        **{
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in per_side.items()
        },
    }


def generation_fields(
    decoding: DecodingConfig, model: ModelConfig
) -> tuple[dict[str, Any], list[str]]:
    """generation_config.json without token ids, and a line for each field it cannot express."""
    carried = CARRIED | ENGINE
    if decoding.no_repeat_ngram == 1:
        carried -= {"no_repeat_ngram"}
    if len(decoding.forced_prefix.split()) > 1:
        carried -= {"forced_prefix"}
    lost = [
        f"decoding.{option.name}={getattr(decoding, option.name)!r} is not supported by MarianMT; "
        "dropped"
        for option in fields(DecodingConfig)
        if option.name not in carried and getattr(decoding, option.name) != option.default
    ]
    alpha = decoding.alpha
    if alpha and not decoding.power_penalty:
        alpha = 1.0
        lost.append(
            f"the length penalty ((5 + length) / 6)^{decoding.alpha:g} is not supported by "
            "MarianMT; replaced by length^1 in generation_config.json"
        )
    # Counts the start token, unlike ours.
    max_length = decoding.max_length + 1 if decoding.max_length else model.max_length
    generation = {
        "num_beams": decoding.beam_size,
        "length_penalty": alpha,
        "max_length": max_length,
        "renormalize_logits": decoding.renormalize,
    }
    if decoding.min_length:
        generation["min_length"] = decoding.min_length  # the same number, see `_lengths`
    if decoding.no_repeat_ngram > 1:
        generation["no_repeat_ngram_size"] = decoding.no_repeat_ngram
    if decoding.stop != "exact":
        generation["early_stopping"] = decoding.stop == "now"
    return generation, lost


def write_marian_tokenizers(
    directory: Path, tokenizers: tuple[MarianTokenizer, MarianTokenizer], model: ModelConfig
) -> None:
    """Writes the .spm and vocabulary files, and the tokenizer_config.json that lists them."""
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
