"""The target shift of teacher forcing, for NumPy and JAX arrays.

Axis: T target positions, or all tokens of targets that follow one another.
"""

from typing import Any


def shift_right(labels: Any, is_first: Any, start_id: int) -> Any:
    """The decoder's input [..., T]: at each position the token before its label, or the start token
    where `is_first` is True. So the decoder predicts each token from the tokens before it.

        labels    7 8 e  9 e  5 6 4 e      e is the end token
        inputs    s 7 8  s 9  s 5 6 4      s is the start token
    """
    arrays = labels.__array_namespace__()  # numpy or jax.numpy
    return arrays.where(is_first, start_id, arrays.roll(labels, 1, axis=-1))
