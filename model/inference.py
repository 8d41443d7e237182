"""The parameters of a model as inference reads them, prepared once for all programs."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .config import ModelConfig

NOT_WEIGHTS = ("table", "scale")  # lookup tables and norm scales, never operands of a matmul


def inference_variables(
    config: ModelConfig, params: Mapping[str, Any], bias_in_table: bool = False
) -> dict[str, Any]:
    """Variables of `EncoderDecoder.apply` that give the bits of {"params": params}, but for the
    logits: the order of their sums differs.

    Weights have the dtype of their products, so that no program has to cast them. The table of the
    logits is stored twice if ids are looked up in it in another dtype. Arrays are NumPy's or JAX's;
    those whose values do not change are not copied. `bias_in_table` makes the bias of the logits,
    if there is one, two more columns of the table (`with_bias`). ValueError for weights that were
    cast before to a narrower dtype.
    """

    def prepared(path: tuple[Any, ...], x: Array | np.ndarray) -> Array | np.ndarray:
        return x.astype(inference_dtype(config, path[-1].key, x.dtype), copy=False)

    output = _output_table(config)
    table = params[output]["table"]
    logits_table = table.astype(config.weights_dtype, copy=False)
    if bias_in_table and config.output_bias:
        logits_table = with_bias(logits_table, params["output_bias"])
    variables = jax.tree.map_with_path(prepared, dict(params))
    if config.has_output_table or logits_table.dtype == table.dtype:
        del variables[output]
    return {"params": variables, "inference": {output: {"table": logits_table}}}


def inference_dtype(config: ModelConfig, name: str, dtype: Any) -> Any:
    """The dtype of a parameter of this dtype and name, the last part of its path, in inference.
    ValueError as `inference_variables`."""
    if name in NOT_WEIGHTS or name.endswith("bias"):
        return dtype
    if dtype != config.weights_dtype and dtype != np.float32:
        raise ValueError(
            f"dtype={config.dtype} is not supported by weights that are cast to {dtype}; "
            f"load the model with dtype={config.dtype}"
        )
    return config.weights_dtype


def original_params(config: ModelConfig, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The `params` of `inference_variables`. Weights have the dtype to which they were cast."""
    output = _output_table(config)
    table = variables["inference"][output]["table"]
    restored = {output: {"table": table[:, : config.d_model]}}
    return restored | variables["params"]


def _output_table(config: ModelConfig) -> str:
    """The module that owns the table of the logits."""
    return "output_embedding" if config.has_output_table else "target_embedding"


def with_bias(
    table: Float[Array | np.ndarray, "V D"], bias: Float[Array | np.ndarray, " V"]
) -> Float[Array, "V D+2"]:
    """The table with two more columns, for two more values of the hidden state that are 1.

    They are the bias in the table's dtype, and what this rounding leaves, so that the bias has 16
    significant bits in bfloat16.
    """
    bias = jnp.asarray(bias, jnp.float32)
    rounded = bias.astype(table.dtype)
    wide = rounded.astype(jnp.float32)
    rest = jnp.where(jnp.isfinite(wide), bias - wide, 0.0).astype(table.dtype)
    return jnp.concatenate([table, rounded[:, None], rest[:, None]], axis=1)
