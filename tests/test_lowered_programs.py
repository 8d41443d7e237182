"""The programs of training and decoding, lowered for GPU and TPU without running them.

Axes: B batch · S source · T target. The checks read the StableHLO text.
"""

import re
from dataclasses import replace
from functools import cache
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config.tree import DecodingConfig, TrainingConfig
from seq2seq.data.batching.packing import Batch
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.programs import compiled
from seq2seq.decoding.engine.teacher_forcing import scoring_program
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.scoring import GivenPairs
from seq2seq.model.search.translate import Request
from seq2seq.model.transformer import Transformer
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_eval_step, pmap_train_step
from seq2seq.training.parameters import parameter_shapes
from seq2seq.training.step import init_state, make_train_step
from tests.support.models.small_transformer import SMALL, S, T

PLATFORMS = "cuda", "tpu"
TRAINING = TrainingConfig(loss_block=5, ema_decay=0.9)
SEARCHES = {
    "search": DecodingConfig(beam_size=2, batch_size=3),
    "sampling": DecodingConfig(samples=2, top_k=5, top_p=0.9, batch_size=3),
}
FLOAT32 = "training", "evaluation", "scoring", *SEARCHES
MIXED = "training", "search"
CASES = [(program, "float32") for program in FLOAT32] + [(program, "mixed") for program in MIXED]
HOST = re.compile(r"callback|infeed|outfeed|stablehlo\.(send|recv)\b")
FLOAT64 = re.compile(r"[<x]f64\b")
DYNAMIC_SHAPE = re.compile(r"[<x]\?x")
PRODUCT = re.compile(
    r"stablehlo\.dot_general (?P<axes>.*), precision = \[(?P<precision>.*)\] : "
    r"\(tensor<(?P<x>.*)>, tensor<(?P<y>.*)>\) ->"
)


def model_of(dtype):
    return Transformer(replace(SMALL, dtype=dtype))


def integers(*shape):
    return jax.ShapeDtypeStruct((jax.local_device_count(), *shape), np.int32)


def train_state(dtype):
    """The shapes of a TrainState."""
    optimizer = make_optimizer(TRAINING, SMALL.d_model)
    return jax.eval_shape(lambda: init_state(model_of(dtype), optimizer, TRAINING))


def batch_of(*rows):
    source, target = integers(*rows, S), integers(*rows, T)
    return Batch(source, source, source, target, target, target, target, integers(*rows))


def traced_by_pmap(function, *arguments):
    """The `Traced` of a pmapped function. Its `lower` takes no platform."""
    lower = jax.stages.Traced.lower
    with mock.patch.object(jax.stages.Traced, "lower", autospec=True, side_effect=lower) as lowered:
        function.lower(*arguments)
    return lowered.call_args.args[0]


@cache
def traced(program, dtype):
    model = model_of(dtype)
    variables, sources = {"params": parameter_shapes(model.config)}, (integers(6, 16), integers(6))
    if program == "training":
        step = make_train_step(model, make_optimizer(TRAINING, SMALL.d_model), TRAINING)
        return traced_by_pmap(pmap_train_step(step), train_state(dtype), batch_of(2, 3))
    if program == "evaluation":
        step = pmap_eval_step(model, TRAINING)
        return traced_by_pmap(step, variables["params"], batch_of(3))
    if program == "scoring":
        weights = np.float32([0.3, 0.7])
        run = scoring_program((model, model), SearchOptions(0, model.config.end_id))
        return run.trace([variables] * 2, weights, GivenPairs(*sources, *sources), None)
    engine = Engine([model.config], SEARCHES[program])
    request = Request(*sources, limits=integers(6), numbers=integers(6))
    return compiled(engine.program(16)).trace([variables], request, engine.values)


@cache
def text_of(program, dtype, platforms=PLATFORMS):
    """The program for all platforms, with a branch for each where they differ."""
    return traced(program, dtype).lower(lowering_platforms=platforms).as_text()


def products(text):
    """Every dot_general, with the groups of PRODUCT."""
    all_products = [match.groupdict() for match in PRODUCT.finditer(text)]
    assert len(all_products) == text.count("stablehlo.dot_general") > 0
    return all_products


def in_full_precision(product):
    operands = product["x"].rpartition("x")[2], product["y"].rpartition("x")[2]
    return operands == ("f32", "f32") and product["precision"] == "HIGHEST, HIGHEST"


@pytest.mark.parametrize("program, dtype", CASES)
def test_a_program_has_no_host_communication_no_float64_and_no_dynamic_shape(program, dtype):
    text = text_of(program, dtype)
    assert "func.func public @main" in text
    assert not [p.pattern for p in (HOST, FLOAT64, DYNAMIC_SHAPE) if p.search(text)]


def test_callbacks_float64_and_dynamic_shapes_are_recognised():
    """JAX itself refuses to lower most callbacks for another platform."""
    calls = jax.jit(lambda x: jax.debug.callback(print, x)).lower(np.zeros(3)).as_text()
    with jax.enable_x64():
        double = jax.jit(jnp.sin).lower(np.zeros(3)).as_text()
    (size,) = jax.export.symbolic_shape("n")
    sizes = jax.ShapeDtypeStruct((size,), np.float32), jax.ShapeDtypeStruct((3, size), np.float32)
    dynamic = [str(jax.export.export(jax.jit(jnp.sin))(shape).mlir_module()) for shape in sizes]
    assert FLOAT64.search(double) and all(map(DYNAMIC_SHAPE.search, dynamic))
    assert HOST.search(calls) and not HOST.search(double)
    assert not FLOAT64.search(dynamic[0]) and not DYNAMIC_SHAPE.search(double)


@pytest.mark.parametrize("program", FLOAT32)
def test_all_products_of_float32_have_full_precision(program):
    all_products = products(text_of(program, "float32"))
    assert [product for product in all_products if not in_full_precision(product)] == []


@pytest.mark.parametrize("program", MIXED)
def test_mixed_multiplies_weights_in_bfloat16_and_attends_in_the_default_precision(program):
    """Attention alone has products with batch axes, which are B and H."""
    all_products = products(text_of(program, "mixed"))
    attention = [product for product in all_products if "batching_dims" in product["axes"]]
    weights = [product for product in all_products if "batching_dims" not in product["axes"]]
    assert attention and weights
    assert all(p["x"].endswith("xbf16") and p["y"].endswith("xbf16") for p in weights)
    assert all(p["x"].endswith("xf32") and p["y"].endswith("xf32") for p in attention)
    assert {p["precision"] for p in attention} == {"DEFAULT, DEFAULT"}


def test_the_step_donates_the_whole_state():
    text = text_of("training", "float32", ("tpu",))
    (main,) = (line for line in text.splitlines() if "func.func public @main" in line)
    arguments = main.partition(") -> (")[0].split("%arg")[1:]
    donated = [
        bool(re.search("jax.buffer_donor|tf.aliasing_output", argument)) for argument in arguments
    ]
    state = len(jax.tree.leaves(train_state("float32")))
    assert len(donated) == state + len(jax.tree.leaves(batch_of(2, 3)))
    assert all(donated[:state])
