"""XLA's fused products on a CPU give the results of training and decoding without them.

Each program is compiled twice from one lowered module, with the library YNNPACK for fused products
and reductions and without it. The other settings of conftest.py change none of its fusions.
Axes: B rows · S source · T target · V vocabulary. The arrays are large enough for YNNPACK.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config.tree import DecodingConfig, TrainingConfig
from seq2seq.data.batching.packing import Batch
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.programs import compiled
from seq2seq.decoding.engine.teacher_forcing import scoring_program
from seq2seq.model.config import ModelConfig
from seq2seq.model.kinds import make_model
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.scoring import GivenPairs
from seq2seq.model.search.translate import Request
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_train_step
from seq2seq.training.step import TrainState, init_state, make_train_step

B, S, T, V = 8, 48, 48, 300
SIZES = {"source_vocab_size": V, "target_vocab_size": V, "d_model": 96, "num_layers": 1}
WIDE = SIZES | {"d_ff": 160, "num_heads": 3, "max_length": 64}
# Together they have every choice of the model that changes a gradient.
MODELS = {
    "post": ModelConfig(**WIDE, positions="learned", attention_dropout=0.1),
    "pre": ModelConfig(
        **WIDE, norm="pre", positions="rotary", activation="gelu_tanh", tied_embeddings="two-way",
        attention_bias=True, output_bias=True, remat=True, scale_embeddings=False,
        activation_dropout=0.1, dtype="mixed",
    ),
    "relative": ModelConfig(
        **WIDE, norm="pre", norm_function="rms", positions="relative", activation="silu",
        gated_feed_forward=True, feed_forward_bias=False, embedding_norm=True, scale_scores=False,
        scale_logits=True, d_k=24, tied_embeddings="none", dtype="bfloat16",
    ),
    "rnn_attention": ModelConfig(**SIZES, kind="rnn_attention"),
}  # fmt: skip
# Adam's large epsilon: an update is then a continuous function of the gradient.
ADAM = {"adam_epsilon": 1.0, "weight_decay": 0.1}
TRAINING = {
    "post": TrainingConfig(**ADAM, ema_decay=0.5, warmup_steps=1),
    "pre": TrainingConfig(**ADAM, loss_block=13, clip_norm=0.0, warmup_steps=1),
    "relative": TrainingConfig(**ADAM, label_smoothing=0.0, warmup_steps=1),
    "rnn_attention": TrainingConfig(**ADAM, freeze="encoder/*", warmup_steps=1),
}
SEARCHES = {
    "beam": DecodingConfig(beam_size=4, batch_size=8),
    "sampling": DecodingConfig(samples=2, top_k=5, top_p=0.9, batch_size=8),
}
WITHOUT_FUSIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}
# Of the largest value of a part of the results. Those in bfloat16 may be rounded to a neighbour.
TOLERANCES = dict.fromkeys(("post", "rnn_attention", "beam", "sampling", "scoring"), 1e-4)
NARROW = 0.02
FUSED = re.compile(r"fusion\([^\n]*calls=%?([\w.-]+)[^\n]*__ynn_fusion")
COMPUTATION = re.compile(r"^%?([\w.-]+) \([^\n]*\{\n(.*?)\n\}", re.DOTALL | re.MULTILINE)
SCALAR = re.compile(r"%([\w.-]+) = \S+ broadcast\([^\n]*dimensions=\{\}")
ELEMENTWISE = r"%([\w.-]+) = \S+ (?:convert|copy|bitcast|reshape|transpose|negate)\(%{}\)"


def wrong_fusions(hlo: str) -> list[str]:
    """The names of fusions of optimised HLO that XLA computes wrongly on a CPU: products by the
    broadcast of a scalar that are reduced in the same fusion."""
    names, bodies = [], dict(COMPUTATION.findall(hlo))
    for name in FUSED.findall(hlo):
        body = bodies[name]
        scalars = SCALAR.findall(body)
        for scalar in scalars:  # grows
            scalars += re.findall(ELEMENTWISE.format(re.escape(scalar)), body)
        factors = re.findall(r" dot\(%?[\w.-]+, %?([\w.-]+)\)", body)
        if " reduce(" in body and set(factors) & set(scalars):
            names.append(name)
    return names


def batch() -> Batch:
    """Rows of two pairs each, with padding and loss weights."""
    random = np.random.default_rng(0)

    def side(length: int) -> list[np.ndarray]:
        first, end = random.integers(8, 20, (B, 1)), random.integers(30, length, (B, 1))
        column = np.arange(length)
        segments = np.where(column < first, 1, np.where(column < end, 2, 0))
        positions = np.where(column < first, column, column - first)
        return [random.integers(4, V, (B, length)), segments, positions]

    source, target = side(S), side(T)
    arrays = [*source, target[0], random.integers(4, V, (B, T)), *target[1:], np.arange(B)]
    weights = np.float32(random.uniform(0.5, 1.5, (B, T)) * (target[1] > 0))
    return Batch(*(x.astype(np.int32) for x in arrays), weights)


def compare(name: str, jitted, arguments: tuple, parts=lambda results: (results,)) -> None:
    """Assert that no fusion of the program is a wrong one, and that the parts of its results with
    fusions are those without them."""
    lowered = jitted.lower(*arguments)
    fused, plain = lowered.compile(), lowered.compile(compiler_options=WITHOUT_FUSIONS)
    text = fused.as_text()
    assert FUSED.search(text) and not FUSED.search(plain.as_text())
    assert wrong_fusions(text) == []
    results = [parts(jax.device_get(program(*arguments))) for program in (fused, plain)]
    for part, expected_part in zip(*results, strict=True):
        leaves = jax.tree_util.tree_leaves_with_path(expected_part)
        largest = max(np.abs(leaf.astype(float)).max() for _, leaf in leaves)
        atol = TOLERANCES.get(name, NARROW) * largest
        for result, (path, expected) in zip(jax.tree.leaves(part), leaves, strict=True):
            place = f"{name} {jax.tree_util.keystr(path)}"
            np.testing.assert_allclose(result, expected, rtol=0, atol=atol, err_msg=place)


def random_state(name: str) -> TrainState:
    """A state with random parameters; `init_state` would compile as long as a step."""
    config, training = MODELS[name], TRAINING[name]
    model, optimizer = make_model(config), make_optimizer(training, config.d_model)
    shapes = jax.eval_shape(lambda: init_state(model, optimizer, training))
    random = np.random.default_rng(1)
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: np.float32(random.normal("scale" in str(path[-1]), 0.1, x.shape)),
        shapes.params,
    )
    ema = None if state.ema is None else params
    return state._replace(params=params, ema=ema, key=np.asarray(jax.random.PRNGKey(0)))


@pytest.mark.slow
def test_a_wrong_fusion_is_recognised():
    x = np.random.default_rng(2).random((64, 64), np.float32)
    reduced = jax.jit(lambda x, scale: jnp.sum((x @ jnp.broadcast_to(scale, x.shape)) * x))
    lowered = reduced.lower(x, np.float32(0.5))
    assert len(wrong_fusions(lowered.compile().as_text())) == 1
    assert wrong_fusions(lowered.compile(compiler_options=WITHOUT_FUSIONS).as_text()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_fusions_change_a_training_step_by_rounding_only(name):
    """Compares the update of each parameter, and the metrics."""
    config, training = MODELS[name], TRAINING[name]
    model, optimizer = make_model(config), make_optimizer(training, config.d_model)
    state = random_state(name)
    rows = jax.tree.map(lambda x: x[None], batch())  # [devices, B, …]
    micro = jax.tree.map(lambda x: x.reshape(1, 2, B // 2, *x.shape[2:]), rows)

    def parts(results):
        after, metrics = results
        return jax.tree.map(np.subtract, after.params, state.params), metrics

    step = pmap_train_step(make_train_step(model, optimizer, training))
    compare(name, step, (state, micro), parts)


@pytest.mark.slow
def test_fusions_change_searches_and_scores_by_rounding_only():
    """Sources in one bucket, and given targets."""
    config, random = MODELS["post"], np.random.default_rng(1)
    variables = {"params": jax.tree.map(jnp.asarray, random_state("post").params)}
    shape = jax.local_device_count(), 16
    sources = random.integers(4, V, (*shape, 32)).astype(np.int32)
    lengths = random.integers(9, 33, shape).astype(np.int32)
    request = Request(sources, lengths, limits=lengths)
    numbers = np.arange(sources[..., 0].size, dtype=np.int32).reshape(shape)
    request = request._replace(numbers=numbers)
    for name, options in SEARCHES.items():
        engine = Engine([config], options)
        program = compiled(engine.program(32))
        compare(name, program, ([variables], request, engine.values))
    program = scoring_program((make_model(config),), SearchOptions(0, config.end_id))
    pairs = GivenPairs(sources, lengths, sources[..., :24], lengths - 8)
    compare("scoring", program, ((variables,), None, pairs, None))
