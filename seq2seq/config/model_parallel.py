"""Checks of training.model_parallel and decoding.model_parallel, and the advice to set them."""

from collections.abc import Callable

from seq2seq.model.config import ModelConfig
from seq2seq.model.placement import divisors
from seq2seq.runtime.errors import CONFIGURATION, UserError


def check_model_parallel(name: str, value: int, model: ModelConfig, devices: int) -> None:
    """UserError(CONFIGURATION) if the option `name` is not a number of devices, out of `devices` of
    a host, among which the model can be divided."""
    possible = divisors(model, devices)
    if value in possible:
        return
    sizes = f"model.num_heads={model.num_heads}, model.d_ff={model.d_ff}"
    if model.kind != "transformer":
        sizes = f"model.kind={model.kind} (only Transformers are divided)"
    raise UserError(
        CONFIGURATION,
        f"{name}={value} does not divide this model among the devices of a host: expected "
        f"{' or '.join(map(str, possible))} with {sizes} and {devices} devices",
    )


def smallest_above(
    value: int, model: ModelConfig, devices: int, fits: Callable[[int], bool] = lambda _: True
) -> int:
    """The smallest number of devices above `value`, out of `devices` of a host, that can share the
    model and with which it `fits`; 0 if there is none."""
    return next((n for n in divisors(model, devices) if n > value and fits(n)), 0)
