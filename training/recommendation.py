"""Recommendations: configs/small.py for a large model with few pairs or too little memory, mixed
for float32 on an accelerator."""

from model.config import num_parameters
from storage.config import Config

LARGE = 10_000_000  # parameters of a large model; configs/small.py has half of them
PARAMETERS_PER_PAIR = 250  # more than configs/small.py has with 20,000 pairs
SMALL = "--config=configs/small.py"


def size_hint(config: Config, pairs: int) -> str:
    """The recommendation if the model is large and new and `pairs` are few for it; else ""."""
    parameters = num_parameters(config.model)
    if parameters <= max(LARGE, PARAMETERS_PER_PAIR * pairs) or config.training.init_from:
        return ""
    return (
        f"hint: {pairs:,} pairs are few for a model of {parameters:,} parameters; {SMALL} is for "
        "20 thousand to a million pairs"
    )


def precision_hint(dtype: str, platform: str) -> str:
    """The recommendation of mixed for a model of float32 on a GPU or TPU; else "". `platform` is
    jax.default_backend()."""
    if dtype != "float32" or platform == "cpu":
        return ""
    return (
        "hint: products of float32 are several times as slow as those of bfloat16 on a "
        f"{platform.upper()}; --config.model.dtype=mixed is recommended for a new run"
    )


def smaller_model(config: Config) -> str:
    """The advice for a model that does not fit into memory."""
    return "a smaller model" + f" ({SMALL})" * (num_parameters(config.model) > LARGE)
