"""The tensors of a MarianMT model and our parameters: the same numbers under other names.

A run whose start token has an embedding is exported with one more row: `with_start_row`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from seq2seq.model.config import ModelConfig
from seq2seq.model.positions import sinusoidal_positions
from seq2seq.pretrained.tensors import (
    TOLERANCE,
    Redundant,
    Tensor,
    attention_layers,
    check_copy,
    read_params,
)
from seq2seq.pretrained.weight_files import WeightFiles
from seq2seq.runtime.errors import CHECKPOINT, UserError

POSITIONS = "model.{}.embed_positions.weight"
IMPOSSIBLE = -1e9  # the output bias of the appended row


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Every tensor of a model: the one table of names, used in both directions."""
    d, target_size = config.d_model, config.target_vocab_size
    shared, output = "model.shared.weight", "lm_head.weight"
    source, target = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    source_table, target_table = ("source_embedding", "table"), ("target_embedding", "table")
    if config.tied_embeddings == "three-way":
        yield Tensor(shared, target_table, (target_size, d), (source, target, output))
    else:
        is_tied = config.tied_embeddings == "two-way"
        yield Tensor(source, source_table, (config.source_vocab_size, d), (shared,))
        yield Tensor(target, target_table, (target_size, d), (output,) if is_tied else ())
        if not is_tied:
            yield Tensor(output, ("output_embedding", "table"), (target_size, d))
    yield Tensor("final_logits_bias", ("output_bias",), (1, target_size))
    yield from attention_layers(config)


def redundant_tensors(config: ModelConfig) -> Redundant:
    """The tables of positions, which a formula determines."""
    table = partial(sinusoidal_positions, config.max_length, config.d_model, "halves")
    return {POSITIONS.format(side): table for side in ("encoder", "decoder")}


def config_with_start_row(config: ModelConfig) -> ModelConfig:
    """The configuration after `with_start_row`: one more row, which starts decoding and pads."""
    last = config.target_vocab_size
    return replace(
        config,
        source_vocab_size=max(config.source_vocab_size, last) + 1,
        target_vocab_size=last + 1,
        pad_id=last,
        start_id=last,
    )


def with_start_row(params: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The same model for a decoder that starts with a last row of zeros, as Marian's does.

    It needs `start_positions` as the decoder's table of positions. The new row is never predicted.
    """
    result = dict(params)
    for name, rows in _table_rows(config_with_start_row(config), params).items():
        table = np.asarray(params[name]["table"])
        result[name] = {"table": np.pad(table, ((0, rows - len(table)), (0, 0)))}
    bias = params.get("output_bias", np.zeros(config.target_vocab_size, np.float32))
    result["output_bias"] = np.append(bias, np.float32(IMPOSSIBLE))
    return result


def read_with_start_row(weights: WeightFiles, config: ModelConfig) -> dict[str, Any]:
    """The parameters whose `with_start_row` a file holds; `config` is without that row.

    UserError(CHECKPOINT) if the table of positions lacks the start token, because transformers
    does not save that table.
    """
    name, stored = POSITIONS.format("decoder"), config_with_start_row(config)
    if name not in weights.shapes:
        raise UserError(
            CHECKPOINT,
            f"{weights.path}: the tensor {name} is missing, which holds the start token of this "
            "model; use the directory as convert.py wrote it",
        )
    redundant = {**redundant_tensors(stored), name: None}  # compared below
    params = read_params(tensors(stored), redundant, weights, stored)
    for table, rows in _table_rows(config, params).items():
        params[table] = {"table": params[table]["table"][:rows]}
    params["output_bias"] = params["output_bias"][: config.target_vocab_size]
    check_copy(name, weights.read(name), start_positions(params, config), weights, TOLERANCE)
    return params


def start_positions(params: Mapping[str, Any], config: ModelConfig) -> np.ndarray:
    """The decoder's table of positions [T, D] with the start token's embedding added to row 0,
    which is read at the start token only."""
    positions = sinusoidal_positions(config.max_length, config.d_model, "halves")
    scale = np.float32(config.d_model**0.5 if config.scale_embeddings else 1.0)
    start = params["target_embedding"]["table"][config.start_id]
    positions[0] += np.asarray(start, np.float32) * scale
    return positions


def _table_rows(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, int]:
    """The number of rows of each table that the parameters have."""
    source, target = config.source_vocab_size, config.target_vocab_size
    rows = {"source_embedding": source, "target_embedding": target, "output_embedding": target}
    return {name: size for name, size in rows.items() if name in params}
