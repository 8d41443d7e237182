"""Checks of training.model_parallel and decoding.model_parallel, and the advice to set them."""

from collections.abc import Callable, Sequence

from seq2seq.model.config import ModelConfig
from seq2seq.model.placement import divisors
from seq2seq.runtime.errors import CONFIGURATION, UserError


def check_model_parallel(name: str, value: int, model: ModelConfig, devices: int | None) -> None:
    """UserError(CONFIGURATION) if the option `name` is not a number of devices, out of `devices` of
    a host (None: any number), among which the model can be divided."""
    possible = divisors(model, devices or model.num_heads)
    if value in possible:
        return
    sizes = f"model.num_heads={model.num_heads}, model.d_ff={model.d_ff}"
    if model.kind != "transformer":
        sizes = f"model.kind={model.kind} (only Transformers are divided)"
    raise UserError(
        CONFIGURATION,
        f"{name}={value} does not divide this model among the devices of a host: expected "
        f"{' or '.join(map(str, possible))} with {sizes}"
        + (f" and {devices} devices" if devices else ""),
    )


def larger_values(value: int, models: Sequence[ModelConfig], devices: int) -> list[int]:
    """The numbers of devices above `value`, out of `devices` of a host, among which all of these
    models can be divided, ascending."""
    possible = [set(divisors(model, devices)) for model in models]
    return sorted(n for n in set.intersection(*possible) if n > value)


def smallest_above(
    value: int,
    models: Sequence[ModelConfig],
    devices: int,
    fits: Callable[[int], bool] = lambda _: True,
) -> int:
    """The first of `larger_values` with which the models fit; 0 if there is none."""
    return next(filter(fits, larger_values(value, models, devices)), 0)
