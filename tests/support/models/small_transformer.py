"""A small Transformer with random parameters and packed pairs, shared by tests."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.model.config import CHOICES, ModelConfig
from seq2seq.model.encoder_decoder import PairPositions
from seq2seq.model.kinds import make_model
from seq2seq.training.parameters import parameter_shapes

V, S, T = 41, 11, 13
POSITIONS = CHOICES["positions"]
# Three heads of width ten. Two-way tying separates source and target embeddings.
SMALL = ModelConfig(
    source_vocab_size=37,
    target_vocab_size=V,
    d_model=30,
    d_ff=43,
    num_heads=3,
    num_layers=1,
    max_length=17,
    tied_embeddings="two-way",
)


def with_positions(kind, **options):
    """SMALL with this kind of positions. Its sequences have every range of relative distances."""
    ranges = dict(relative_buckets=10, relative_distance=9) if kind == "relative" else {}
    return replace(SMALL, positions=kind, **ranges, **options)


def ids(*shape, seed=0):
    return jax.device_put(np.random.default_rng([seed, *shape]).integers(4, 37, shape, np.int32))


def changed_ids(ids):
    """Ids that differ from `ids` at every place."""
    return (ids + 7) % 37


def variables_of(config):
    """All parameters are random, including biases and scales: a zero or one would hide errors.
    Configs that differ in what parameters do not depend on share them."""
    no_parameters = dict(dtype="float32", dropout=0.0, remat=False)
    if config.kind == "transformer":
        no_parameters |= dict(attention_dropout=0.0, activation_dropout=0.0)
        if config.positions in ("rotary", "alibi"):
            no_parameters |= dict(positions="none")
    return random_variables(replace(config, **no_parameters))


@cache
def random_variables(config):
    random = np.random.default_rng(3)

    def value(path, leaf):
        draw = random.standard_normal(leaf.shape)
        if path[-1].key == "scale":
            draw = 1.0 + 0.1 * draw
        elif path[-1].key.endswith("bias"):
            draw = 0.1 * draw
        else:
            draw = draw * config.d_model**-0.5
        return draw.astype(leaf.dtype)

    params = jax.tree_util.tree_map_with_path(value, parameter_shapes(config))
    return {"params": jax.device_put(params)}


@cache
def jitted(config, method="__call__"):
    """model.apply with these parameters, compiled once for each shape of its inputs."""
    apply = jax.jit(partial(make_model(config).apply, method=method))
    return partial(apply, variables_of(config))


# Row 0 packs three pairs and padding; rows 1 … 3 hold the same pairs separately, with padding.
SOURCE_LENGTHS, TARGET_LENGTHS = (4, 3, 2), (5, 1, 4)


def packed_and_single(lengths, size, seed):
    rows, segments, positions = np.zeros((3, 4, size), np.int32)
    rows[:] = ids(4, size, seed=seed)  # including padding
    start = 0
    for i, length in enumerate(lengths, 1):
        segments[0, start : start + length] = i
        positions[0, start : start + length] = range(length)
        rows[i, :length] = rows[0, start : start + length]
        segments[i, :length] = 1
        positions[i] = range(size)
        start += length
    return rows, segments, positions


SOURCE, TARGET = packed_and_single(SOURCE_LENGTHS, S, 1), packed_and_single(TARGET_LENGTHS, T, 2)
_SIDES = [jax.device_put(x) for sides in zip(SOURCE, TARGET, strict=True) for x in sides]
BATCH = [*_SIDES[:4], PairPositions(*_SIDES[4:])]
ONES = [jax.device_put(np.ones_like(x)) for x in BATCH[:2]]
POSITION_IDS = PairPositions(*(jnp.asarray(np.tile(np.arange(n), (4, 1))) for n in (S, T)))
