"""What is saved of a TrainState: a copy on the host, checked and divided into parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.runtime.errors import DIVERGED, UserError


def host_copy(state: Any) -> Any:
    """A copy of `state` in NumPy arrays. On a CPU `device_get` returns views of the device's
    buffers, which are donated to the next step."""
    return jax.tree.map(np.array, jax.device_get(state))


@jax.jit
def finite_leaves(tree: Any) -> Any:
    """For each array, whether all its elements are finite."""
    return jax.tree.map(lambda x: jnp.isfinite(x).all(), tree)


def check_finite(state: Any, step: int) -> None:
    """Raise UserError(DIVERGED) with the name of the first array that is not finite."""
    finite = jax.device_get(finite_leaves(state))
    for path, is_finite in jax.tree_util.tree_leaves_with_path(finite):
        if not is_finite:
            raise UserError(
                DIVERGED,
                f"step {step} is not saved: {jax.tree_util.keystr(path)} has NaN or infinite "
                "elements; lower training.learning_rate and resume from the last checkpoint",
            )


def checkpoint_items(state: Any) -> dict[str, Any]:
    """The separately stored parts of a TrainState: params, ema (if there is one), and the rest."""
    rest = state._asdict()
    items = {name: rest.pop(name) for name in ("params", "ema")}
    return {name: tree for name, tree in items.items() if tree is not None} | {"rest": rest}
