"""The tree of parameters: its initial values, its trained, frozen and decayed parts.

training.freeze names frozen parameters by patterns of their paths, as in encoder/*. The gradient
and the optimizer are given the trained part only, so nothing is computed or stored for the other.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from seq2seq.config.tree import Config
from seq2seq.model.config import ModelConfig
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.kinds import make_model
from seq2seq.model.options import closest_names
from seq2seq.runtime.errors import CONFIGURATION, UserError

VOCABULARY_SIZES = ("source_vocab_size", "target_vocab_size")


def init_params(model: EncoderDecoder, key: jax.Array) -> Any:
    """Random parameters."""
    ids = jnp.ones((1, 2), jnp.int32)
    return model.init(key, ids, ids, ids, ids)["params"]


def split_params(params: Any, freeze: str) -> tuple[Any, Any]:
    """(trained, frozen): two trees that together have the leaves of `params`.

    `freeze` is training.freeze: patterns of fnmatch on paths such as encoder/layers_0/norm/scale,
    separated by commas. Raises UserError(CONFIGURATION) for a pattern without a match, and if no
    parameter would be trained.
    """
    leaves = flatten_dict(params, sep="/")
    paths = frozen_paths(list(leaves), freeze)
    trained = {path: leaf for path, leaf in leaves.items() if path not in paths}
    frozen = {path: leaf for path, leaf in leaves.items() if path in paths}
    return unflatten_dict(trained, sep="/"), unflatten_dict(frozen, sep="/")


def merge_params(trained: Any, frozen: Any) -> Any:
    """The tree that `split_params` has split."""
    return unflatten_dict(flatten_dict(trained) | flatten_dict(frozen))


def is_decayed(name: str) -> bool:
    """Whether weight decay applies to a parameter with this name, the last part of its path.

    By convention it applies to weight matrices and embeddings, not to biases and not to the scales
    of layer norms. The name decides, not the rank: attention biases have rank 2.
    """
    return name != "scale" and name != "bias" and not name.endswith("_bias")


def frozen_paths(paths: list[str], freeze: str) -> set[str]:
    """The paths that match a pattern. Raises UserError(CONFIGURATION), see `split_params`."""
    frozen: set[str] = set()
    for pattern in freeze.split(",") if freeze else ():
        matched = {path for path in paths if fnmatchcase(path, pattern.strip())}
        if not matched:
            raise UserError(
                CONFIGURATION,
                f"training.freeze: {pattern.strip()!r} matches no parameter: expected a pattern "
                f"such as {' or '.join(similar_patterns(pattern, paths))} (* is any text)",
            )
        frozen |= matched
    if len(frozen) == len(paths):
        raise UserError(
            CONFIGURATION,
            f"training.freeze={freeze} freezes all {len(paths)} parameters: expected at least one "
            "that is trained; remove a pattern",
        )
    return frozen


def similar_patterns(pattern: str, paths: list[str]) -> list[str]:
    """Up to three patterns that match, the most similar ones first."""
    modules = {path[:end] for path in paths for end, sign in enumerate(path) if sign == "/"}
    candidates = sorted({*paths, *(f"{module}/*" for module in modules)})
    top = sorted(f"{module}/*" for module in modules if "/" not in module)
    return closest_names(pattern, candidates) or top


@cache
def parameter_shapes(model: ModelConfig) -> Any:
    """The shapes of all parameters; uses no device. An unset vocabulary size counts as that of the
    special tokens alone."""
    smallest = 1 + max(model.pad_id, model.start_id, model.end_id, model.unknown_id)
    sizes: dict[str, Any] = {n: getattr(model, n) or smallest for n in VOCABULARY_SIZES}
    module = make_model(replace(model, **sizes))
    return jax.eval_shape(lambda: init_params(module, jax.random.PRNGKey(0)))


def check_freeze(config: Config) -> None:
    """Raise UserError(CONFIGURATION) if training.freeze is invalid for the model."""
    if config.training.freeze:
        split_params(parameter_shapes(config.model), config.training.freeze)


def num_frozen(config: Config) -> int:
    """The number of frozen parameters."""
    if not config.training.freeze:
        return 0
    _, frozen = split_params(parameter_shapes(config.model), config.training.freeze)
    return sum(leaf.size for leaf in jax.tree.leaves(frozen))
