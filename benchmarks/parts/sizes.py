"""The sizes that benchmarks/accelerator.py measures: FULL on an accelerator, TINY on a CPU.

Both have the same names of models, so the parts and the tables are the same.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from seq2seq.config.tree import Config
from seq2seq.configs import base, big, small
from seq2seq.model.config import ModelConfig

PAIR = 32  # tokens of each side of a pair in a packed row


class TrainingSize(NamedTuple):
    """A model, the length of its packed rows, and the rows of the smallest and largest batch."""

    model: ModelConfig
    length: int
    first_rows: int
    most_rows: int


class Sizes(NamedTuple):
    """Everything that is measured, and the seconds that one measurement of a call takes at
    least."""

    training: dict[str, TrainingSize]
    decoding: dict[str, ModelConfig]
    hypotheses: tuple[int, ...]  # on the device at once: lanes · beams
    queue: int  # sentences of a call, as a multiple of the lanes
    source_length: int
    output_length: int  # forced
    max_length: int  # slots of the cache of a lane, per beam
    matmul: tuple[int, ...]  # n of the n × n matrices
    bytes_copied: int
    attention: tuple[tuple[int, int, int, int], ...]  # B, H, T, K
    seconds: float
    platform: str = "cpu"  # of the devices that JAX finds


def training_size(get_config: Callable[[], Config], first_rows: int) -> TrainingSize:
    """The model and the row length of a config, with the vocabulary size of its data."""
    config = get_config()
    model = replace(
        config.model,
        source_vocab_size=config.data.vocab_size,
        target_vocab_size=config.data.vocab_size,
    )
    return TrainingSize(model, config.data.target_length, first_rows, 32 * first_rows)


TRAINING = {
    "small": training_size(small.get_config, 128),
    "base": training_size(base.get_config, 64),
    "big": training_size(big.get_config, 32),
}
# The options of seq2seq/pretrained/marian.py for an OPUS-MT model.
OPUS = ModelConfig(
    source_vocab_size=58_101, target_vocab_size=58_101, max_length=512, sinusoid_layout="halves",
    activation="silu", attention_bias=True, layer_norm_epsilon=1e-5, output_bias=True,
)  # fmt: skip
# Models that several devices share (docs/MODELS.md), for benchmarks/compiled_programs.py. Attention
# has no dropout, so that it runs as kernels where they fit.
T5 = ModelConfig(
    source_vocab_size=32_128, target_vocab_size=32_128, num_layers=24, max_length=512, norm="pre",
    norm_function="rms", positions="relative", feed_forward_bias=False, scale_scores=False,
    scale_embeddings=False, scale_logits=True, d_model=1024, d_ff=16_384, num_heads=32, d_k=128,
)  # fmt: skip
LARGE = {
    "t5-3b": T5,
    "flan-t5-xxl": replace(
        T5, scale_logits=False, d_model=4096, d_ff=10_240, num_heads=64, d_k=64,
        activation="gelu_tanh", gated_feed_forward=True, tied_embeddings="inputs",
    ),
    "nllb-3.3b": ModelConfig(
        source_vocab_size=256_206, target_vocab_size=256_206, num_layers=24, max_length=512,
        norm="pre", d_model=2048, d_ff=8192, num_heads=16, sinusoid_layout="fairseq",
        attention_bias=True, layer_norm_epsilon=1e-5,
    ),
}  # fmt: skip
FULL = Sizes(
    training=TRAINING,
    decoding={
        "opus": OPUS,
        "base": TRAINING["base"].model,
        "small": TRAINING["small"].model,
    },
    hypotheses=(128, 512, 2048, 8192),
    queue=4,
    source_length=32,
    output_length=32,
    max_length=32 + 50,  # as by default: source length + max_extra_length
    matmul=(4096, 8192, 16384),
    bytes_copied=2**30,
    attention=((64, 8, 256, 64), (32, 16, 256, 64), (16, 8, 1024, 64)),
    seconds=0.3,
)


def tiny_model(model: ModelConfig) -> ModelConfig:
    """The same architecture with one layer and a width of 16."""
    small = dict(d_model=16, d_ff=32, num_heads=2, num_layers=1, max_length=32)
    return replace(model, source_vocab_size=96, target_vocab_size=96, **small)


TINY = FULL._replace(
    training={
        name: TrainingSize(tiny_model(training.model), 16, 4, 4)
        for name, training in FULL.training.items()
    },
    decoding={name: tiny_model(model) for name, model in FULL.decoding.items()},
    hypotheses=(32,),
    source_length=8,
    output_length=16,
    max_length=32,
    matmul=(128,),
    bytes_copied=2**16,
    attention=((2, 2, 16, 8),),
    seconds=0.002,
)
SIZES = {"full": FULL, "tiny": TINY}
