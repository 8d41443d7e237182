"""The parameters of a model as inference reads them, prepared once for all programs."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .config import ModelConfig

NOT_WEIGHTS = ("table", "scale")  # of embeddings and positions, which are looked up, and of norms


def inference_variables(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of `EncoderDecoder.apply` that give the same bits as {"params": params}.

    Weights have the dtype of their products, so that no program has to cast them, and the table of
    the logits is also stored transposed [D, V], as products read it. Arrays are NumPy's or JAX's;
    those whose values do not change are not copied. ValueError for weights that were cast before
    to a narrower dtype.
    """

    def prepared(path, x):
        name = path[-1].key
        if name in NOT_WEIGHTS or name.endswith("bias"):
            return x
        if x.dtype != config.weights_dtype and x.dtype != np.float32:
            raise ValueError(
                f"dtype={config.dtype} is not supported by weights that are cast to {x.dtype}; "
                f"load the model with dtype={config.dtype}"
            )
        return x.astype(config.weights_dtype, copy=False)

    output = "output_embedding" if config.tied_embeddings == "none" else "target_embedding"
    table = params[output]["table"].astype(config.weights_dtype, copy=False)
    return {
        "params": jax.tree.map_with_path(prepared, params),
        "inference": {output: {"transposed": table.T}},
    }
