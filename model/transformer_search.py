"""The Transformer in a search: the memory of a source, and a step with an append-only cache.

Axes: B lanes · S source · N beams · T steps · D model width.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .beam_search import Step
from .cache import StoredKeysValues, stored
from .config import ModelConfig
from .transformer import Transformer


def encode_transformer(
    model: Transformer, variables: Any, source: Int[Array, "B S"], segments: Int[Array, "B S"]
) -> Float[Array, "B S D"]:
    """The encoder's output, which is smaller than the memory of all decoder layers."""
    encoded: Array = model.apply(variables, source, segments, method="encode")
    return encoded


def empty_encoded(config: ModelConfig, sentences: int, length: int) -> Float[Array, "B S D"]:
    """Space for the encoder's output."""
    return jnp.zeros((sentences, length, config.d_model), config.values_dtype)


def search_memory(
    model: Transformer, variables: Any, encoded: Float[Array, "B S D"]
) -> tuple[StoredKeysValues, ...]:
    """Cross-attention keys and values of every decoder layer."""
    return tuple(map(stored, model.apply(variables, encoded, method="memory_keys_values")))


def ancestry_mask(ancestry: Int[Array, "B N T"]) -> Bool[Array, "B 1 N T*N"]:
    """The slots of an append-only cache that each hypothesis may attend to.

    Slot n of step s is key s·N + n. A hypothesis may attend to it if n was its ancestor at s.
    """
    own = ancestry[:, :, :, None] == jnp.arange(ancestry.shape[1])
    return own.reshape(*ancestry.shape[:2], -1)[:, None]


def search_step(model: Transformer, variables: Any) -> Step:
    """The Transformer as the step of a search: an append-only cache, masked by ancestry."""

    def step(tokens, state, t, parents, ancestry):
        beams, source_length = tokens.shape[1], state.memory[0].values.shape[2]
        mask = ancestry_mask(ancestry)
        memory_mask = jnp.arange(source_length) < state.lengths[:, None]
        memory = tuple(cache.keys_values for cache in state.memory)
        logits, caches = model.apply(
            variables, tokens, state.caches, t * beams, t, mask, memory,
            memory_mask[:, None, None], method="step",
        )  # fmt: skip
        return logits, state._replace(caches=caches)

    return step
