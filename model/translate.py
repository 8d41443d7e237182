"""Encode once, then search: the whole decode as one function for one compiled graph.

Axes: B sentences · S source · N beams · T steps.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from model.attention import KeysValues
from model.beam_search import Hypotheses, Step, beam_search
from model.transformer import Transformer


def search_step(
    model: Transformer, variables: Any, memory: tuple[KeysValues, ...], memory_mask: Array
) -> Step:
    """The Transformer as `beam_search`'s step: an append-only cache, masked by ancestry."""

    def step(tokens, caches, t, parents, ancestry):
        beams = tokens.shape[1]
        # Slot n of step s is key s·N + n; hypothesis b sees it where n was its ancestor at s.
        mine = ancestry[:, :, :, None] == jnp.arange(beams)
        mask = mine.reshape(*ancestry.shape[:2], -1)[:, None]
        return model.apply(
            variables, tokens, caches, t * beams, t, mask, memory, memory_mask, method="step"
        )

    return step


def empty_caches(model: Transformer, batch: int, slots: int) -> tuple[KeysValues, ...]:
    """A cache of zeros [B, H, slots, K] for every decoder layer."""
    c = model.config
    zeros = jnp.zeros((batch, c.num_heads, slots, c.head_size), c.dtype)
    return (KeysValues(zeros, zeros),) * c.decoder_layers


def translate(
    model: Transformer,
    variables: Any,
    source: Int[Array, "B S"],
    lengths: Int[Array, " B"],
    limits: Int[Array, " B"],
    *,
    beam_size: int,
    max_length: int,
    alpha: float = 0.6,
    nbest: int = 1,
) -> Hypotheses:
    """The n best translations of each source row.

    `lengths` and `limits` count the end token, in source and target; `max_length` is the static
    cap of `limits` and must not exceed the model's own. A row of length 0 is done at once.
    """
    c = model.config
    segments = (jnp.arange(source.shape[1]) < lengths[:, None]).astype(jnp.int32)
    memory = model.apply(variables, source, segments, method="encode")
    memory = model.apply(variables, memory, method="memory_keys_values")
    memory_mask = (segments > 0)[:, None, None, :]
    return beam_search(
        search_step(model, variables, memory, memory_mask),
        empty_caches(model, len(source), max_length * beam_size),
        jnp.full(len(source), c.start_id),
        jnp.where(lengths > 0, limits, 1),
        beam_size=beam_size,
        max_length=max_length,
        end_id=c.end_id,
        alpha=alpha,
        nbest=nbest,
    )
