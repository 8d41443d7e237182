"""The tensors of a MarianMT model and our parameters: the same numbers under other names.

`tensors` is the one table of names, used in both directions. A run whose start token has an
embedding is exported with one more row: `append_start_row`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from seq2seq.interop.tensors import Tensor, attention_layers, our_layout
from seq2seq.model.config import ModelConfig
from seq2seq.model.positions import sinusoidal_positions
from seq2seq.runtime.errors import CHECKPOINT, UserError

POSITIONS = "model.{}.embed_positions.weight"
IMPOSSIBLE = -1e9  # the output bias of the appended row


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Every tensor of a model. Ours is transposed and reshaped, except for embeddings."""
    d, target_size = config.d_model, config.target_vocab_size
    source_table, target_table = ("source_embedding", "table"), ("target_embedding", "table")
    if config.tied_embeddings == "three-way":
        yield Tensor("model.shared.weight", target_table, (target_size, d))
    else:
        source_shape = config.source_vocab_size, d
        yield Tensor("model.encoder.embed_tokens.weight", source_table, source_shape)
        yield Tensor("model.decoder.embed_tokens.weight", target_table, (target_size, d))
    if config.tied_embeddings == "none":
        yield Tensor("lm_head.weight", ("output_embedding", "table"), (target_size, d))
    yield Tensor("final_logits_bias", ("output_bias",), (1, target_size))
    yield from attention_layers(config)


def redundant_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of tensors that transformers may store although others determine them."""
    d = config.d_model
    source, target = (config.source_vocab_size, d), (config.target_vocab_size, d)
    shapes = {
        "model.shared.weight": source,
        "lm_head.weight": target,
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
    }
    shapes |= {POSITIONS.format(side): (config.max_length, d) for side in ("encoder", "decoder")}
    names = {tensor.name for tensor in tensors(config)}
    return {name: shape for name, shape in shapes.items() if name not in names}


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig, path: str) -> None:
    """UserError(CHECKPOINT) that names a tensor that is missing, unexpected or misshapen."""
    expected = {tensor.name: tensor.shape for tensor in tensors(config)}
    if missing := [name for name in expected if name not in shapes]:
        raise UserError(CHECKPOINT, f"{path}: the tensor {missing[0]} is missing")
    allowed = expected | redundant_tensors(config)
    for name, shape in shapes.items():
        if name not in allowed:
            raise UserError(
                CHECKPOINT,
                f"{path}: the tensor {name} is unexpected; a MarianMT model of this config.json "
                "does not have it",
            )
        if tuple(shape) != allowed[name]:
            raise UserError(
                CHECKPOINT, f"{path}: {name} has shape {tuple(shape)}, expected {allowed[name]}"
            )


def params_from_tensors(
    arrays: dict[str, np.ndarray], config: ModelConfig, path: str
) -> dict[str, Any]:
    """Our parameters, float32, from arrays by name. UserError(CHECKPOINT) that names the tensor.

    Redundant tensors must equal what they duplicate. `path` is the file, for error messages.
    """
    check_shapes({name: array.shape for name, array in arrays.items()}, config, path)
    redundant = dict(arrays)
    params: dict[str, Any] = {}
    for tensor in tensors(config):
        array = np.asarray(redundant.pop(tensor.name), np.float32)
        parent = params
        for part in tensor.path[:-1]:
            parent = parent.setdefault(part, {})
        parent[tensor.path[-1]] = np.ascontiguousarray(our_layout(array, tensor.path, config))
    target = params["target_embedding"]["table"]
    source = params.get("source_embedding", params["target_embedding"])["table"]
    output = params.get("output_embedding", params["target_embedding"])["table"]
    originals = {
        "model.shared.weight": source, "lm_head.weight": output,
        "model.encoder.embed_tokens.weight": source, "model.decoder.embed_tokens.weight": target,
    }  # fmt: skip
    for name, array in redundant.items():
        if name in originals:
            _check_copy(name, array, originals[name], path)
        else:
            table = sinusoidal_positions(config.max_length, config.d_model, "halves")
            _check_copy(name, array, table, path)
    return params


def _check_copy(name: str, array: np.ndarray, original: np.ndarray, path: str) -> None:
    if not np.allclose(array, original, rtol=2e-3, atol=2e-3):  # the copy may be half precision
        raise UserError(
            CHECKPOINT,
            f"{path}: {name} has other values than the tensor or table that it must duplicate",
        )


def config_with_start_row(config: ModelConfig) -> ModelConfig:
    """The configuration after `append_start_row`: one more row, which starts decoding and pads."""
    last = config.target_vocab_size
    return replace(
        config,
        source_vocab_size=max(config.source_vocab_size, last) + 1,
        target_vocab_size=last + 1,
        pad_id=last,
        start_id=last,
    )


def append_start_row(arrays: dict[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """The same model for a decoder that starts with a last row of zeros, as Marian's does.

    The embedding of our start token is added to row 0 of the decoder's table of positions, which
    is read at the start token only. The new row is never predicted.
    """
    result, positions = dict(arrays), start_positions(arrays, config)
    for name, _, shape, *_ in tensors(config_with_start_row(config)):
        rows = shape[0] - len(result[name])
        if name == "final_logits_bias":
            result[name] = np.append(result[name], np.array([[IMPOSSIBLE]], np.float32), 1)
        elif rows:
            result[name] = np.pad(result[name], ((0, rows), (0, 0)))
    return result | {POSITIONS.format("decoder"): positions}


def remove_start_row(
    arrays: dict[str, np.ndarray], config: ModelConfig, path: str
) -> dict[str, np.ndarray]:
    """The inverse of `append_start_row`; `config` is without that row.

    UserError(CHECKPOINT) if the table of positions lacks the start token, because transformers
    does not save that table.
    """
    result, name = dict(arrays), POSITIONS.format("decoder")
    positions = result.pop(name, None)
    if positions is None:
        raise UserError(
            CHECKPOINT,
            f"{path}: the tensor {name} is missing, which holds the start token of this model; use "
            "the directory as convert.py wrote it",
        )
    shapes = {key: array.shape for key, array in result.items()}
    check_shapes(shapes, config_with_start_row(config), path)
    for key, _, shape, *_ in tensors(config):
        if key == "final_logits_bias":
            result[key] = result[key][:, : shape[1]]
        else:
            result[key] = result[key][: shape[0]]
    _check_copy(name, positions, start_positions(result, config), path)
    return result


def start_positions(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> np.ndarray:
    """The decoder's table of positions [T, D] with the start token's embedding added to row 0."""
    shared = config.tied_embeddings == "three-way"
    table = arrays["model.shared.weight" if shared else "model.decoder.embed_tokens.weight"]
    positions = sinusoidal_positions(config.max_length, config.d_model, "halves")
    scale = np.float32(config.d_model**0.5 if config.scale_embeddings else 1.0)
    positions[0] += np.asarray(table[config.start_id], np.float32) * scale
    return positions
