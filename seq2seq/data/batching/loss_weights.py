"""Loss weights: a number per pair that multiplies the loss of its target tokens.

The loss of a batch is Σ w·loss / Σ w over its target tokens, where w is the weight of the token's
pair. The weights are scaled here so that their sum in a batch is its number of target tokens: the
training step then divides by that number as it does without weights.

Axes: B rows of the global batch, T target; P pairs.
"""

import numpy as np
from jaxtyping import Float32, Int


def loss_weight_scale(
    weights: Float32[np.ndarray, " P"], target_lengths: Int[np.ndarray, " P"]
) -> float:
    """The factor that scales the weights of the pairs of a global batch.

    `target_lengths` are the target tokens of each pair in a row. 0 if all weights are 0.
    """
    total = float((weights.astype(np.float64) * target_lengths).sum())
    return int(target_lengths.sum()) / total if total else 0.0


def label_weights(
    weights: Float32[np.ndarray, " P"],
    rows: Int[np.ndarray, " offsets"],
    segments: Int[np.ndarray, "B T"],
    scale: float,
) -> Float32[np.ndarray, "B T"]:
    """The weight of each label times `scale`; 0 at padding.

    `weights` are those of the pairs of these rows. Row r of `segments` holds the pairs
    `rows[r]` to `rows[r + 1] - 1` as segments 1, 2, …; later rows are padding.
    """
    first = np.zeros((len(segments), 1), np.int64)  # pair of each row
    first[: len(rows) - 1, 0] = rows[:-1]
    is_label = segments > 0
    scaled = np.zeros(segments.shape, np.float32)
    scaled[is_label] = weights[(first + segments - 1)[is_label]].astype(np.float64) * scale
    return scaled
