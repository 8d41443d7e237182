"""Random parameters of a model, as large as a test needs them."""

import jax
import numpy as np

from seq2seq.training.parameters import parameter_shapes


def random_params(config, seed=0, deviation=0.5, mean_scale=0.0):
    """All parameters of a ModelConfig as NumPy arrays of normal numbers with this standard
    deviation, also biases, so that a misplaced one changes results. The mean is 0, that of the
    scales of norms `mean_scale`."""
    random = np.random.default_rng(seed)

    def normal(path, leaf):
        mean = mean_scale if path[-1].key == "scale" else 0.0
        return random.normal(mean, deviation, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(normal, parameter_shapes(config))
