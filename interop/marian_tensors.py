"""The tensors of a MarianMT model and our parameters: the same numbers under other names.

`tensors` is the one table of names, read in both directions. A run whose start token has an
embedding goes out with one more row: `append_start`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from model.config import ModelConfig
from model.positions import sinusoidal_positions
from runtime.errors import CHECKPOINT, UserError

POSITIONS = "model.{}.embed_positions.weight"
NEVER = -1e9  # the logit of the appended row


class Tensor(NamedTuple):
    """One tensor: its name there, its path in our parameters, and its shape there."""

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Every tensor of a model; ours is theirs transposed and reshaped, embeddings as they are."""
    c, d = config, config.d_model
    if c.tied_embeddings == "three-way":
        yield Tensor("model.shared.weight", ("target_embedding", "table"), (c.target_vocab_size, d))
    else:
        yield Tensor(
            "model.encoder.embed_tokens.weight",
            ("source_embedding", "table"),
            (c.source_vocab_size, d),
        )
        yield Tensor(
            "model.decoder.embed_tokens.weight",
            ("target_embedding", "table"),
            (c.target_vocab_size, d),
        )
    if c.tied_embeddings == "none":
        yield Tensor("lm_head.weight", ("output_embedding", "table"), (c.target_vocab_size, d))
    yield Tensor("final_logits_bias", ("output_bias",), (1, c.target_vocab_size))
    for side, layers in (("encoder", c.num_layers), ("decoder", c.decoder_layers)):
        attentions = [("self_attn", "self_attention", "around_self")]
        if side == "decoder":
            attentions.append(("encoder_attn", "cross_attention", "around_cross"))
        for i in range(layers):
            there, here = f"model.{side}.layers.{i}.", (side, f"layers_{i}")
            for name, ours, around in attentions:
                for one, whole in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
                    yield Tensor(f"{there}{name}.{one}_proj.weight", (*here, ours, whole), (d, d))
                    yield Tensor(
                        f"{there}{name}.{one}_proj.bias", (*here, ours, f"{whole}_bias"), (d,)
                    )
                yield from _norm(f"{there}{name}_layer_norm", (*here, around, "norm"), d)
            for name, ours, shape in (("fc1", "inner", (c.d_ff, d)), ("fc2", "outer", (d, c.d_ff))):
                yield Tensor(f"{there}{name}.weight", (*here, "feed_forward", ours), shape)
                yield Tensor(
                    f"{there}{name}.bias", (*here, "feed_forward", f"{ours}_bias"), shape[:1]
                )
            yield from _norm(f"{there}final_layer_norm", (*here, "around_feed_forward", "norm"), d)


def _norm(name, path, d):
    yield Tensor(f"{name}.weight", (*path, "scale"), (d,))
    yield Tensor(f"{name}.bias", (*path, "bias"), (d,))


def copies(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """What transformers may store too and what follows from the rest: names and shapes."""
    c, d = config, config.d_model
    source, target = (c.source_vocab_size, d), (c.target_vocab_size, d)
    shapes = {
        "model.shared.weight": source,
        "lm_head.weight": target,
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
    }
    shapes |= {POSITIONS.format(side): (c.max_length, d) for side in ("encoder", "decoder")}
    return {
        name: shape
        for name, shape in shapes.items()
        if name not in {one.name for one in tensors(config)}
    }


def check_shapes(there: Mapping[str, tuple[int, ...]], config: ModelConfig, where: str) -> None:
    """UserError(CHECKPOINT) that names a tensor that is missing, of another shape or unknown."""
    expected = {one.name: one.shape for one in tensors(config)}
    if missing := [name for name in expected if name not in there]:
        raise UserError(CHECKPOINT, f"{where}: the tensor {missing[0]} is missing")
    for name, shape in there.items():
        wanted = (expected | copies(config)).get(name)
        if wanted is None:
            raise UserError(
                CHECKPOINT,
                f"{where}: the tensor {name} belongs to no MarianMT model that can be represented",
            )
        if tuple(shape) != wanted:
            raise UserError(
                CHECKPOINT, f"{where}: {name} has shape {tuple(shape)}, expected {wanted}"
            )


def from_marian(there: dict[str, np.ndarray], config: ModelConfig, where: str) -> dict[str, Any]:
    """Our parameters, float32, of tensors by name. UserError(CHECKPOINT) that names the tensor.

    Copies and tables of positions that transformers may store too must equal what they copy.
    """
    check_shapes({name: array.shape for name, array in there.items()}, config, where)
    for name, array in there.items():
        if array.dtype.kind in "iub":
            raise UserError(
                CHECKPOINT,
                f"{where}: {name} holds {array.dtype}, expected numbers "
                "with a fraction; quantised models cannot be represented",
            )
    rest, params = dict(there), {}
    heads = config.num_heads, config.head_size
    for name, path, _ in tensors(config):
        array = np.asarray(rest.pop(name), np.float32)
        if path[-1] != "table":
            array = array.T
            ours = path[-1].removesuffix("_bias")
            if ours in ("query", "key", "value"):
                array = array.reshape(*array.shape[:-1], *heads)
            elif path[-1] == "output":
                array = array.reshape(*heads, -1)
            elif name == "final_logits_bias":
                array = array.reshape(-1)
        inside = params
        for part in path[:-1]:
            inside = inside.setdefault(part, {})
        inside[path[-1]] = np.ascontiguousarray(array)
    table = params["target_embedding"]["table"]
    source = params.get("source_embedding", params["target_embedding"])["table"]
    output = params.get("output_embedding", params["target_embedding"])["table"]
    positions = sinusoidal_positions(config.max_length, config.d_model, "halves")
    expected = {
        "model.shared.weight": source, "lm_head.weight": output,
        "model.encoder.embed_tokens.weight": source, "model.decoder.embed_tokens.weight": table,
    } | {POSITIONS.format(side): positions for side in ("encoder", "decoder")}  # fmt: skip
    for name, array in rest.items():
        _check_copy(name, array, expected[name], where)
    return params


def _check_copy(name, array, expected, where):
    if not np.allclose(array, expected, rtol=2e-3, atol=2e-3):  # they may be in half precision
        raise UserError(CHECKPOINT, f"{where}: {name} is not what it should be a copy of")


def to_marian(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """Tensors by name of our parameters: `from_marian` backwards, bit for bit.

    Biases that the configuration does not have are zero.
    """
    there = {}
    for name, path, shape in tensors(config):
        array = params
        for part in path:
            array = array.get(part) if array is not None else None
        if array is None:
            array = np.zeros(shape, np.float32)
        elif len(shape) == 2 and path[-1] not in ("table", "output_bias"):
            array = np.reshape(array, shape[::-1]).T
        there[name] = np.ascontiguousarray(np.reshape(array, shape), np.float32)
    return there


def appended(config: ModelConfig) -> ModelConfig:
    """The configuration of what `append_start` makes: one more row, with which decoding starts."""
    last = config.target_vocab_size
    return replace(
        config,
        source_vocab_size=max(config.source_vocab_size, last) + 1,
        target_vocab_size=last + 1,
        pad_id=last,
        start_id=last,
    )


def append_start(there: dict[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """The same model for a decoder that starts with a last row of zeros, as Marian's does.

    What our start token adds at position 0 goes into the decoder's table of positions, whose row 0
    nothing else reads. The new row is never predicted.
    """
    there, positions = dict(there), start_positions(there, config)
    for name, _, shape in tensors(appended(config)):
        rows = shape[0] - len(there[name])
        if name == "final_logits_bias":
            there[name] = np.append(there[name], np.float32([[NEVER]]), axis=1)
        elif rows:
            there[name] = np.pad(there[name], ((0, rows), (0, 0)))
    return there | {POSITIONS.format("decoder"): positions}


def remove_start(
    there: dict[str, np.ndarray], config: ModelConfig, where: str
) -> dict[str, np.ndarray]:
    """`append_start` backwards; `config` is the one without that row. UserError(CHECKPOINT) where
    the table of positions does not hold the start token (transformers does not save it)."""
    there, name = dict(there), POSITIONS.format("decoder")
    positions = there.pop(name, None)
    if positions is None:
        raise UserError(
            CHECKPOINT,
            f"{where}: the tensor {name} is missing, which holds the start "
            "token of this model; take the directory as convert.py wrote it",
        )
    check_shapes({key: x.shape for key, x in there.items()}, appended(config), where)
    for key, _, shape in tensors(config):
        there[key] = (
            there[key][:, : shape[1]] if key == "final_logits_bias" else (there[key][: shape[0]])
        )
    _check_copy(name, positions, start_positions(there, config), where)
    return there


def start_positions(there: Mapping[str, np.ndarray], config: ModelConfig) -> np.ndarray:
    """The decoder's table of positions [T, D] with the start token's embedding in row 0."""
    table = there[
        "model.shared.weight"
        if config.tied_embeddings == "three-way"
        else "model.decoder.embed_tokens.weight"
    ]
    positions = sinusoidal_positions(config.max_length, config.d_model, "halves")
    scale = np.float32(config.d_model**0.5 if config.scale_embeddings else 1.0)
    positions[0] += np.asarray(table[config.start_id], np.float32) * scale
    return positions
