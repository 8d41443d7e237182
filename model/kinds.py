"""The kinds of models, `ModelConfig.kind`, and the module of a config."""

from .config import ModelConfig
from .encoder_decoder import EncoderDecoder
from .rnn import Rnn
from .transformer import Transformer

MODEL_KINDS: dict[str, type[EncoderDecoder]] = {
    "transformer": Transformer,
    "rnn_attention": Rnn,
    "rnn": Rnn,
}


def make_model(config: ModelConfig) -> EncoderDecoder:
    """The module of this config."""
    return MODEL_KINDS[config.kind](config)
