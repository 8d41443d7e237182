"""Statistics of the heads of a trained model, and its loss without each of them.

Axes: L layers · B sentences · H heads · T queries · S keys.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.model.attention import MultiHeadAttention, multi_head_attention
from seq2seq.model.search.scoring import GivenPairs, target_log_probs, teacher_forcing
from seq2seq.scripts.experiments.small_model import (
    Arguments,
    Call,
    Options,
    Sequences,
    Task,
    Trained,
    Variant,
    forced_pass,
    is_call,
    padded,
)
from seq2seq.scripts.experiments.softmax_scaling import entropy

KINDS = ("encoder", "decoder", "cross")  # the attentions
Encoded = tuple[Sequences, Sequences]


def head_statistics(trained: Trained, task: Task, pairs: Encoded) -> dict[str, np.ndarray]:
    """Entropy, mean offset and diagonality of each head [kind, layer, head] over all queries."""
    _, attention = forced_pass(trained, task, *pairs)
    statistics: dict[str, list] = {"entropy": [], "offset": [], "diagonality": []}
    sides = {"encoder": pairs[0], "decoder": pairs[1], "cross": pairs[1]}
    for kind in KINDS:
        layers = np.stack(getattr(attention, kind))  # [L, B, H, T, S]
        lengths = np.array([len(tokens) + 1 for tokens in sides[kind]])
        inside = np.arange(layers.shape[3]) < lengths[:, None]
        offsets = np.arange(layers.shape[4]) - np.arange(layers.shape[3])[:, None]
        of_queries = {
            "entropy": entropy(layers),
            "offset": (layers * offsets).sum(axis=-1),
            "diagonality": (layers * (np.abs(offsets) <= 1)).sum(axis=-1),
        }
        for name, value in of_queries.items():  # the mean over the queries of all sentences
            statistics[name].append((value * inside[:, None]).sum(axis=(1, 3)) / inside.sum())
    return {name: np.array(value) for name, value in statistics.items()}


def ablated_losses(trained: Trained, task: Task, pairs: Encoded) -> np.ndarray:
    """The loss in nats per token: of the model, then without one head after the other."""
    config, model = trained.model.config, trained.model
    arrays = (*padded(pairs[0], task.source_length), *padded(pairs[1], task.target_length))
    inputs = GivenPairs(*map(jnp.asarray, arrays))
    inside = jnp.arange(task.target_length) < inputs.target_lengths[:, None]
    shape = len(KINDS), config.num_layers, config.num_heads

    @jax.jit
    def loss(variables: Any, kept: jax.Array) -> jax.Array:
        variant = Variant(model.config, partial(remove_heads, kept))
        logits, _ = teacher_forcing(variant, variables, inputs)
        return -(target_log_probs(logits, inputs.target, None) * inside).sum() / inside.sum()

    whole = np.ones(shape, np.float32)
    masks = [whole]
    for place in np.ndindex(shape):
        masks.append(whole.copy())
        masks[-1][place] = 0.0
    return np.array([float(loss(trained.variables, kept)) for kept in masks])


def remove_heads(
    kept: jax.Array, original: Call, arguments: Arguments, options: Options, context: Any
) -> Any:
    """An interceptor: the output of each head is multiplied by `kept` [kind, layer, head]."""
    if not is_call(context, MultiHeadAttention):
        return original(*arguments, **options)
    stack, layer, name = context.module.path
    kind = "cross" if name == "cross_attention" else stack
    factors = kept[KINDS.index(kind), int(layer.removeprefix("layers_"))]
    x, keys_values, mask, bias, how, _ = arguments
    params = context.module.params
    params = params._replace(output=params.output * jnp.reshape(factors, (-1, 1, 1)))
    output, weights = multi_head_attention(params, x, keys_values, mask, bias, how)
    context.module.sow("intermediates", "weights", weights)
    return output
