"""An estimate of the memory of a search, which decides the batch size on GPU and TPU."""

from collections.abc import Sequence

import jax
import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.buckets import length_buckets
from seq2seq.decoding.engine.requests import max_lengths
from seq2seq.model.config import ModelConfig, num_parameters
from seq2seq.model.kinds import make_model
from seq2seq.model.position_rules import POSITION_RULES

USABLE = 0.5  # of the memory for a search; the rest is for copies that XLA makes


def sentences_in(memory: int, models: Sequence[ModelConfig], options: DecodingConfig) -> int:
    """The largest batch size whose searches fit into `memory` bytes of a device; at least 1."""
    longest = min(model.max_length for model in models)
    # In the order of a batch size: a bucket of twice the length has half as many lanes.
    lane = max(
        sum(lane_bytes(model, options, bucket, longest) for model in models) * 32 / max(32, bucket)
        for bucket in length_buckets(longest)
    )
    parameters = sum(parameter_bytes(model, options.model_parallel) for model in models)
    return max(1, int(USABLE * max(0, memory - parameters) / lane))


def parameter_bytes(model: ModelConfig, model_parallel: int) -> int:
    """The bytes of the parameters on a device. Those that several devices share are read with the
    dtype of their products; the others are placed before they are cast."""
    width = 4 if model_parallel == 1 else np.dtype(model.weights_dtype).itemsize
    return width * num_parameters(model) // model_parallel


def lane_bytes(model: ModelConfig, options: DecodingConfig, source: int, longest: int) -> int:
    """The bytes of a model in a lane that searches a bucket of `source` tokens.

    The sum of the caches of the decoder, the memory of the sentence in the lane, two sentences that
    are encoded (`Encoded`), and the largest intermediate values: of a step of the search, of the
    encoder, or of teacher forcing.
    """
    target = int(max_lengths(options, np.array(source), longest))
    beams, module = options.samples or options.beam_size, make_model(model)
    arrays = jax.eval_shape(
        lambda: (
            module.empty_caches(1, target, beams),
            module.empty_memory(1, source),
            module.empty_encoded(2, source),
        )
    )
    stored = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))
    searched_values = 3 * model.target_vocab_size + step_values(model, source, target, beams)
    forced_values = 2 * source * model.target_vocab_size
    values = max(beams * searched_values, encoder_values(model, source), forced_values)
    return stored // options.model_parallel + 4 * values  # caches are divided by heads


def encoder_values(model: ModelConfig, source: int) -> int:
    """The largest number of values in intermediate arrays of the encoder at a time, per source.

    Transformer: scores and weights, and the feed-forward activations twice; three times each with a
    bias on scores and with a gate. RNN: three gates of inputs and states.
    """
    if model.kind != "transformer":
        return 2 * source * 3 * model.d_model
    attention = (3 if POSITION_RULES[model.positions].has_bias else 2) * model.num_heads * source
    return source * (attention + (3 if model.gated_feed_forward else 2) * model.d_ff)


def step_values(model: ModelConfig, source: int, steps: int, beams: int) -> int:
    """The same of a step of the search, per hypothesis, without those of the vocabulary's size.

    Transformer: scores and weights of the self-attention to the cache, and the bias on scores. RNN:
    the sums of queries and keys.
    """
    if model.kind != "transformer":
        return source * model.d_model
    return (3 if POSITION_RULES[model.positions].has_bias else 2) * model.num_heads * steps * beams
