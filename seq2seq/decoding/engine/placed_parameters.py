"""Where the parameters of an engine's models lie, and whether they fit there."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from seq2seq.config.model_parallel import check_model_parallel, smallest_above
from seq2seq.model.config import ModelConfig, num_parameters
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.inference import inference_dtype
from seq2seq.model.mesh import Placer, local_mesh
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.memory import device_memory


def placers_of(models: Sequence[EncoderDecoder], model_parallel: int) -> list[Placer | None]:
    """What puts the parameters of each model on the devices of its copies while they are read;
    None: they are read as NumPy arrays, because each device has all of them. Then no device is
    used: a damaged file is refused before one is started.

    UserError as `check_parameters`.
    """
    if model_parallel == 1:
        return [None] * len(models)
    check_parameters(models, model_parallel)

    def dtype(config: ModelConfig, path: Sequence[str], stored: Any) -> Any:
        return inference_dtype(config, path[-1], stored)

    mesh = local_mesh(model_parallel)
    return [Placer(mesh, partial(dtype, model.config)) for model in models]


def check_parameters(models: Sequence[EncoderDecoder], model_parallel: int) -> None:
    """UserError(CONFIGURATION) if a model cannot be divided among so many devices, or if the
    parameters do not fit."""
    devices: int | None = jax.local_device_count()
    if jax.default_backend() == "cpu" and devices == model_parallel:
        devices = None  # they were made for this number
    for model in models:
        check_model_parallel("decoding.model_parallel", model_parallel, model.config, devices)
    check_memory([model.config for model in models], model_parallel)


def check_memory(models: Sequence[ModelConfig], model_parallel: int) -> None:
    """UserError(CONFIGURATION) if the parameters alone exceed the memory of devices for which it is
    known."""
    memory = device_memory()
    needed = sum(
        num_parameters(model) * jnp.dtype(model.weights_dtype).itemsize for model in models
    )
    if memory is None or needed <= model_parallel * memory:
        return
    advice = [] if models[0].weights_dtype == "bfloat16" else ["decoding.dtype=bfloat16"]
    devices = jax.local_device_count()
    more = smallest_above(model_parallel, models, devices, lambda n: needed <= n * memory)
    if more:
        advice.append(f"decoding.model_parallel={more}")
    raise UserError(
        CONFIGURATION,
        f"out of memory: the parameters need {needed / model_parallel / 1e9:,.1f} GB of each "
        f"device, which has {memory / 1e9:,.1f} GB: "
        + (f"set {' or '.join(advice)}" if advice else "use larger devices"),
    )
