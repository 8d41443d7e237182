"""The kinds of models, `ModelConfig.kind`. Training and decoding use all kinds in the same way."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .beam_search import Step
from .cache import empty_caches, empty_memory
from .config import ModelConfig
from .encoder_decoder import EncoderDecoder
from .rnn import Rnn, empty_rnn_memory, empty_rnn_states, encode_rnn, rnn_step
from .transformer import Transformer
from .transformer_search import empty_encoded, encode_transformer, search_memory, search_step


class Kind(NamedTuple):
    """The module of a kind, and what a search needs of it (model/translate.py)."""

    module: type[EncoderDecoder]
    encode: Callable[..., Any]  # (model, variables, source, segments) → encoded, leading axis B
    empty_encoded: Callable[..., Any]  # (config, sentences, source length) → encoded
    memory: Callable[..., Any]  # (model, variables, encoded) → DecoderState.memory
    empty_memory: Callable[..., Any]  # (config, lanes, source length) → DecoderState.memory
    empty_caches: Callable[..., Any]  # (config, lanes, steps, beams) → DecoderState.caches
    step: Callable[..., Step]  # (model, variables) → Step; at t = 0 it reads no cache of its lane


TRANSFORMER = Kind(
    module=Transformer,
    encode=encode_transformer,
    empty_encoded=empty_encoded,
    memory=search_memory,
    empty_memory=empty_memory,
    empty_caches=empty_caches,
    step=search_step,
)
RNN = Kind(
    module=Rnn,
    encode=encode_rnn,
    empty_encoded=empty_rnn_memory,
    memory=lambda model, variables, encoded: encoded,
    empty_memory=empty_rnn_memory,
    empty_caches=empty_rnn_states,
    step=rnn_step,
)
KINDS = {"transformer": TRANSFORMER, "rnn_attention": RNN, "rnn": RNN}


def kind_of(config: ModelConfig) -> Kind:
    return KINDS[config.kind]


def make_model(config: ModelConfig) -> EncoderDecoder:
    """The module of this config."""
    return kind_of(config).module(config)
