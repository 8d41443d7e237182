"""Facts about programs compiled for an accelerator; test_accelerator_programs.py runs this.

    python accelerator_programs.py TARGET
Prints a JSON object: program → facts.
"""

import json
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jax.stages import Traced

from seq2seq.compilation.hlo import REDUCTIONS, Program
from seq2seq.compilation.report import shapes_of
from seq2seq.compilation.targets import Target, target_of
from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, DecodingConfig, TrainingConfig
from seq2seq.decoding.compile_for import search_program, set_sizes
from seq2seq.decoding.engine.engine import Engine
from seq2seq.model.config import ModelConfig
from seq2seq.model.inference import inference_variables
from seq2seq.model.kinds import make_model
from seq2seq.model.search.scoring import GivenPairs, score_targets
from seq2seq.training.compile_for import evaluation_program, step_program
from seq2seq.training.parameters import parameter_shapes

MODEL = ModelConfig(
    source_vocab_size=512, target_vocab_size=512, d_model=128, d_ff=256, num_heads=2, num_layers=1,
    max_length=128, dtype="bfloat16",
)  # fmt: skip
CONFIG = Config(
    MODEL, DataConfig(source_length=128, target_length=128), TrainingConfig(accumulate=2)
)
# The same with two devices for each copy of the model. A head has 128 dimensions, so that the one
# head of a device fits the kernels of a TPU.
DIVIDED = replace(
    CONFIG, model=replace(MODEL, d_k=128), training=replace(CONFIG.training, model_parallel=2)
)
ROWS = 8  # of 128 + 128 tokens, of a copy of the model
SEARCH = DecodingConfig(beam_size=4, batch_size=16)  # test_lowered_programs.py lowers others
BUCKET = 32
QUEUES = (4, 12)  # batches in a call
HOST = ("infeed", "outfeed", "send", "recv")


def facts(traced: Traced) -> dict:
    compiled = traced.lower().compile()
    text, memory = compiled.as_text(), compiled.memory_analysis()
    optimised = Program(text)
    kinds = [operation.kind for operation in optimised.all()]
    in_loops = [
        exchange.kind
        for name in re.findall(r"\bbody=%?([\w.\-]+)", text)
        for operation in optimised.operations_of(name)
        for exchange, _ in operation.exchanges
    ]
    exchanged = optimised.exchanged()
    step = optimised.step()
    return {
        "conditionals_in_step": optimised.decisions(step).conditionals if step else 0,
        "host": [kind for kind in kinds if kind.startswith(HOST)],
        "callbacks": re.findall(r"\w*callback\w*", text),
        "float64": "f64[" in text,
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
        "all_reduces": sum(kind.removesuffix("-start") in REDUCTIONS for kind in kinds),
        "all_reduces_in_loops": sum(kind in REDUCTIONS for kind in in_loops),
        "all_reduced": sum(exchanged[one] for one in exchanged if one.kind in REDUCTIONS),
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }  # fmt: skip


def search(target: Target, queue: int) -> Traced:
    engine = Engine([MODEL], SEARCH)
    set_sizes(engine, SEARCH, target)
    engine.sizes = replace(engine.sizes, queue=queue)
    return search_program(engine, [parameter_shapes(MODEL)], BUCKET, target)


def scoring(target: Target) -> Traced:
    """The scores of 16 given targets."""
    sharding = SingleDeviceSharding(target.devices[0])
    variables = jax.eval_shape(partial(inference_variables, MODEL), parameter_shapes(MODEL))
    ids, lengths = np.zeros((16, BUCKET), np.int32), np.zeros(16, np.int32)
    arguments = shapes_of((variables, ids, lengths, ids, lengths), sharding)

    def score(variables, *pairs):
        return score_targets([(make_model(MODEL), variables)], GivenPairs(*pairs))

    return jax.jit(score).trace(*arguments)


def main(name: str) -> None:
    target = target_of(name)
    first_device = target._replace(devices=target.devices[:1])
    programs = {
        "training": step_program(CONFIG, ROWS, target),
        "evaluation": evaluation_program(CONFIG, ROWS, target),
        "training, divided": step_program(DIVIDED, ROWS, target),
        "evaluation, divided": evaluation_program(DIVIDED, ROWS, target),
        "scoring": scoring(first_device),
        "beam": search(first_device, QUEUES[0]),
        "beam, longer queue": search(first_device, QUEUES[1]),
    }
    results = {}
    for name, program in programs.items():
        started = time.perf_counter()
        results[name] = facts(program)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
