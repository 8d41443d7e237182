"""The attention weights of one pair as arrays.

Axes: L layers · H heads · S source · T target.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.decoding.engine.buckets import pad
from seq2seq.decoding.engine.encoded_pairs import EncodedPair
from seq2seq.decoding.engine.engine import Engine
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.search.scoring import GivenPairs, teacher_forcing
from seq2seq.runtime.devices import check_not_forked


class Attention(NamedTuple):
    """The attention weights of one model for one pair, float32. Each row sums to 1.

    The last token of each side is the end token. Row t of `decoder` and `cross` has the weights of
    the pass that predicts target token t. An RNN with attention has one layer of one head in
    `cross`, and no layers (L = 0) in `encoder` and `decoder`.
    """

    source: list[str]  # S tokens
    target: list[str]  # T tokens
    encoder: np.ndarray  # [L, H, S, S]: queries, keys
    decoder: np.ndarray  # [L, H, T, T]: key 0 is the start token, key u is target token u − 1
    cross: np.ndarray  # [L, H, T, S]: target, source


def attention_of(
    engine: Engine, model: int, pair: EncodedPair, tokenizers: tuple[Tokenizer, Tokenizer]
) -> Attention:
    """The attention weights of model number `model` of an engine for a pair."""
    check_not_forked()
    module, variables = engine.models[model], engine.variables[model]
    source, target = len(pair.source), len(pair.target)
    bucket = next(size for size in engine.buckets if size >= max(source, target))
    pad_id = module.config.pad_id
    padded: list[Any] = [x for ids in pair[:2] for x in pad([ids], 1, bucket, pad_id)]
    with engine.exclusive():
        weights = jax.device_get(attention_weights(module, variables, GivenPairs(*padded)))

    def stacked(layers: Sequence[np.ndarray], queries: int, keys: int) -> np.ndarray:
        cut = [weights[0, :, :queries, :keys] for weights in layers]  # of each layer [H, T, S]
        return np.stack(cut) if cut else np.zeros((0, 1, queries, keys), np.float32)

    return Attention(
        [tokenizers[0].piece(token) for token in pair.source],
        [tokenizers[1].piece(token) for token in pair.target],
        stacked(weights.encoder, source, source),
        stacked(weights.decoder, target, target),
        stacked(weights.cross, target, source),
    )


@partial(jax.jit, static_argnums=0)
def attention_weights(module: EncoderDecoder, variables: Any, pairs: GivenPairs) -> Any:
    """The weights of `teacher_forcing`, compiled once for each model and length bucket."""
    return teacher_forcing(module, variables, pairs)[1]
