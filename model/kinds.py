"""The kinds of models, `ModelConfig.kind`. Training and decoding use all kinds in the same way."""

from .config import ModelConfig
from .encoder_decoder import EncoderDecoder
from .rnn import Rnn
from .transformer import Transformer

MODULES: dict[str, type[EncoderDecoder]] = {
    "transformer": Transformer,
    "rnn_attention": Rnn,
    "rnn": Rnn,
}


def make_model(config: ModelConfig) -> EncoderDecoder:
    """The module of this config."""
    return MODULES[config.kind](config)
