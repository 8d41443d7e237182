"""Counts that need no device: operations of a training step, bytes and steps of a search.

Axes: S source · T target · N beams.
"""

from typing import NamedTuple

import numpy as np

from seq2seq.model.config import ModelConfig
from seq2seq.model.search.beam_search import REFILL_SHARE

FLOAT32 = 4  # bytes
ITEM_BYTES = {"float32": FLOAT32, "bfloat16": 2}


def training_flops(config: ModelConfig, source_length: int, target_length: int) -> float:
    """Floating-point operations of the matmuls of a training step on one row.

    2 per weight and token in the forward pass and twice as many in the backward pass: encoder and
    cross-attention keys and values for each source token, the rest of the decoder and the output
    matrix for each target token. Attention counts all S or T keys of a row for each query, masked
    or not. Recomputation, norms, softmax and the optimizer are not counted.
    """
    d, s, t = config.d_model, source_length, target_length
    heads = config.num_heads * config.head_size
    feed_forward = (2 + config.gated_feed_forward) * d * config.d_ff
    encoder = s * (4 * d * heads + 2 * s * heads + feed_forward)
    self_attention = t * (4 * d * heads + 2 * t * heads)
    cross_attention = 2 * d * heads * (s + t) + 2 * s * t * heads
    decoder = self_attention + cross_attention + t * feed_forward
    output = t * d * config.target_vocab_size
    return 3 * 2 * (config.num_layers * encoder + config.decoder_layers * decoder + output)


class StepBytes(NamedTuple):
    """The bytes that one decode step must read, by kind."""

    decoder: int
    output_matrix: int
    memory: int
    cache: int


def step_bytes(
    config: ModelConfig, lanes: int, beams: int, source_length: int, slots: float
) -> StepBytes:
    """The bytes that a decode step of all lanes must read, each once.

    The decoder's parameters, without the cross-attention projections of keys and values, which run
    once per sentence: weights in the dtype of the products, biases and norms in float32. The output
    matrix and bias. Cross-attention keys and values of `source_length` tokens per lane. Keys and
    values of the `slots` steps that the self-attention cache holds, for every beam. Activations,
    logits and embeddings of single tokens are not counted.
    """
    d, f, heads = config.d_model, config.d_ff, config.num_heads * config.head_size
    weight, value = ITEM_BYTES[config.weights_dtype], ITEM_BYTES[config.values_dtype]
    biases = (f + d) * config.feed_forward_bias
    biases += (4 * heads + 2 * d) * config.attention_bias
    norm = d if config.norm_function == "rms" else 2 * d
    matrices = 6 * d * heads + (2 + config.gated_feed_forward) * d * f
    layer = matrices * weight + (biases + 3 * norm) * FLOAT32
    last_norm = norm * FLOAT32 if config.norm == "pre" else 0
    output_bias = config.target_vocab_size * FLOAT32 if config.output_bias else 0
    keys_values = config.decoder_layers * lanes * 2 * heads * value
    return StepBytes(
        config.decoder_layers * layer + last_norm,
        config.target_vocab_size * d * weight + output_bias,
        keys_values * source_length,
        int(keys_values * beams * slots),
    )


class SearchSteps(NamedTuple):
    """The steps of a search with a queue, the number of refills, and the mean share of lanes that
    hold a sentence."""

    steps: int
    refills: int
    occupied: float


def search_steps(lengths: np.ndarray, lanes: int) -> SearchSteps:
    """What a search with queue refill does for sentences of forced output lengths, in this order
    (model/search/beam_search.py): before a step all free lanes are refilled, at most
    1 / REFILL_SHARE of the lanes at once."""
    left, most = np.zeros(lanes, int), -(-lanes // REFILL_SHARE)
    started = steps = refills = occupied = 0
    while started < len(lengths) or left.any():
        free = np.flatnonzero(left == 0)[: len(lengths) - started]
        refills += -(-len(free) // most)
        left[free] = lengths[started : started + len(free)]
        started += len(free)
        occupied += np.count_nonzero(left)
        steps += 1
        left = np.maximum(left - 1, 0)
    return SearchSteps(steps, refills, occupied / (steps * lanes) if steps else 0.0)
