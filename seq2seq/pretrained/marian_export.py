"""A run exported as a MarianMT directory, which transformers and CTranslate2 load.

An error names what that layout cannot express. Three differences are converted exactly: absent
biases become zeros, interleaved sinusoids become halves by a permutation of the features, and a
start token with an embedding moves into the table of positions (`with_start_row`).
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config.data_config import TEMPLATES, DataConfig
from seq2seq.config.tree import Config, DecodingConfig
from seq2seq.data.tokenizers.marian_tokenizer import (
    OLD_PAD,
    PAD,
    MarianTokenizer,
    with_appended_pad,
)
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.files.output_files import write_atomic
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.common_fields import common_fields
from seq2seq.pretrained.generation_export import ENGINE, forced_beginning, generation_settings
from seq2seq.pretrained.json_fields import write_json
from seq2seq.pretrained.marian import ACTIVATIONS, NOTE, REQUIRED
from seq2seq.pretrained.marian_tensors import (
    POSITIONS,
    config_with_start_row,
    start_positions,
    tensors,
    with_start_row,
)
from seq2seq.pretrained.tensors import stored_tensors
from seq2seq.pretrained.weight_files import write_weights
from seq2seq.runtime.errors import CHECKPOINT, UserError

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
# Fields of config.decoding that generation_config.json has too. `forced_eos_token_id` is always
# written, and costs nothing there.
CARRIED = {
    "beam_size", "alpha", "power_penalty", "max_length", "min_length", "no_repeat_ngram",
    "suppress", "suppress_first", "renormalize", "forced_prefix", "forced_end", "stop",
}  # fmt: skip


def marian_differences(model: ModelConfig) -> dict[str, tuple[str, str]]:
    """What MarianMT cannot express: (expected, got) for each field of the model."""
    expressible = EXPRESSIBLE | {"d_k": (0, model.d_model // model.num_heads)}
    return {
        name: (" or ".join(dict.fromkeys(map(repr, values))), repr(getattr(model, name)))
        for name, values in expressible.items()
        if getattr(model, name) not in values
    }


def check_vocabulary(data: DataConfig, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """UserError(CHECKPOINT) that names what MarianMT cannot express."""
    for tokenizer in tokenizers:
        if not isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
            raise UserError(
                CHECKPOINT,
                f"a vocabulary of {tokenizer.kind} is not supported by MarianMT: expected unigram "
                "or bpe (SentencePiece)",
            )
        if tokenizer.id_of(OLD_PAD) is not None:
            raise UserError(
                CHECKPOINT,
                f"the vocabulary has the piece {OLD_PAD!r}, which the export reserves for the "
                "run's padding",
            )
    for name in TEMPLATES:
        if got := getattr(data, name):
            raise UserError(
                CHECKPOINT, f"data.{name} is not supported by MarianMT: expected '', got {got!r}"
            )


def export_marian(
    config: Config,
    tokenizers: tuple[Tokenizer, Tokenizer],
    load_params: Callable[[], Mapping[str, Any]],
    directory: Path,
) -> list[str]:
    """Writes a model without `marian_differences` into an empty directory.

    Returns one line for each decoding default that MarianMT cannot express. UserError(CHECKPOINT)
    for what else it cannot.
    """
    check_vocabulary(config.data, tokenizers)
    params = load_params()
    if config.model.sinusoid_layout == "interleaved":
        even_first = np.argsort(np.arange(config.model.d_model) % 2, kind="stable")
        params = permute_features(params, even_first)
    model = replace(config.model, sinusoid_layout="halves", attention_bias=True, output_bias=True)
    note: dict[str, Any] = {}
    tables: dict[str, np.ndarray] = {}  # of positions
    source, target = originals = (as_marian(tokenizers[0]), as_marian(tokenizers[1]))
    if not starts_with_zeros(params, model, originals):
        recorded = "source_vocab_size", "target_vocab_size", "pad_id", "start_id"
        note = {
            "bos_token_id": model.start_id,
            NOTE: {name: getattr(model, name) for name in recorded},
        }
        tables = {POSITIONS.format("decoder"): start_positions(params, model)}
        params, model = with_start_row(params, model), config_with_start_row(model)
        source = with_appended_pad(source, model.source_vocab_size - 1)
        target = with_appended_pad(target, model.target_vocab_size - 1)
    write_weights(directory, stored_tensors(tensors(model), params) | tables)
    write_json(directory / "config.json", marian_fields(model) | note)
    write_json(
        directory / "generation_config.json", marian_settings(config.decoding, model, originals[1])
    )
    write_marian_tokenizers(directory, (source, target), model)
    return lost_settings(config.decoding)


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
    """config.json: the inverse of `marian_config` in marian.py."""
    return {
        **REQUIRED,
        "architectures": ["MarianMTModel"],
        "dtype": "float32",
        "vocab_size": model.source_vocab_size,
        "decoder_vocab_size": model.target_vocab_size,
        "share_encoder_decoder_embeddings": model.tied_embeddings == "three-way",
        "tie_word_embeddings": model.tied_embeddings != "none",
        "decoder_start_token_id": model.start_id,
        "forced_eos_token_id": model.end_id,
        **common_fields(model, ACTIVATIONS),
    }


def marian_settings(
    decoding: DecodingConfig, model: ModelConfig, target: Tokenizer
) -> dict[str, Any]:
    """generation_config.json. An exact search is the default here, and not written."""
    settings = generation_settings(replace(decoding, forced_end=True), model, target)
    if decoding.stop == "exact":
        del settings["early_stopping"]
    return settings | forced_beginning(decoding.forced_prefix, target)


def lost_settings(decoding: DecodingConfig) -> list[str]:
    """A line for each setting that generation_config.json cannot express."""
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
    if decoding.alpha and not decoding.power_penalty:
        lost.append(
            f"the length penalty ((5 + length) / 6)^{decoding.alpha:g} is not supported by "
            "MarianMT; replaced by length^1 in generation_config.json"
        )
    return lost


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
