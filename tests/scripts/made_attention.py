"""Attention weights made of random numbers, for tests of pages without a model."""

import numpy as np

from seq2seq.decoding.engine.attention_weights import Attention

# Pieces that would end a script element, an attribute or a line of JavaScript.
SOURCE = ["▁나는", "밥", "</script>", "<b>&amp;", '"', "\u2028", "</s>"]
TARGET = ["▁größer", "<!--", "'\\", "▁rice", "</s>"]


def made_attention(layers: int, heads: int, source: list[str], target: list[str]) -> Attention:
    """Random weights; each row sums to 1. That of the decoder is causal."""
    random = np.random.default_rng(layers)

    def weights(rows, columns, causal=False):
        drawn = np.exp(3 * random.normal(size=(layers, heads, rows, columns)))
        drawn = np.tril(drawn) if causal else drawn
        return (drawn / drawn.sum(axis=-1, keepdims=True)).astype(np.float32)

    s, t = len(source), len(target)
    return Attention(source, target, weights(s, s), weights(t, t, causal=True), weights(t, s))
