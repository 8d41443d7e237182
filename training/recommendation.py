"""The recommendation of a smaller model for few pairs or too little memory.

configs/small.py is a Transformer; an RNN is made smaller with model.d_model.
"""

from model.config import num_parameters
from storage.config import Config

LARGE = 10_000_000  # parameters of a large model; configs/small.py has half of them
PARAMETERS_PER_PAIR = 250  # more than configs/small.py has with 20,000 pairs
SMALL = "--config=configs/small.py"
NARROW = "a lower --config.model.d_model"


def size_hint(config: Config, pairs: int) -> str:
    """The recommendation if the model is large and new and `pairs` are few for it; else ""."""
    parameters = num_parameters(config.model)
    if parameters <= max(LARGE, PARAMETERS_PER_PAIR * pairs) or config.training.init_from:
        return ""
    advice = f"{NARROW} is recommended"
    if config.model.kind == "transformer":
        advice = f"{SMALL} is for 20 thousand to a million pairs"
    return f"hint: {pairs:,} pairs are few for a model of {parameters:,} parameters; {advice}"


def smaller_model(config: Config) -> str:
    """The advice for a model that does not fit into memory."""
    advice = SMALL if config.model.kind == "transformer" else NARROW
    return "a smaller model" + f" ({advice})" * (num_parameters(config.model) > LARGE)
