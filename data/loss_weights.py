"""Loss weights: a number per pair that multiplies the loss of its target tokens.

The loss of a batch is Σ w·loss / Σ w over its target tokens, where w is the weight of the token's
pair. The weights are scaled here so that their sum in a batch is its number of target tokens: the
training step then divides by that number as it does without weights.

Axes: B rows of the global batch, T target.
"""

import numpy as np

LARGEST = float(np.finfo(np.float32).max)


def parse_loss_weight(text: bytes) -> float | None:
    """The weight, a finite number of at least 0; None if `text` is not one."""
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if 0.0 <= weight <= LARGEST else None


def loss_weight_scale(weights: np.ndarray, target_slots: np.ndarray) -> float:
    """The factor that scales the weights of the pairs of a global batch.

    `target_slots` are the target tokens of each pair. 0 if all weights are 0.
    """
    total = float((weights.astype(np.float64) * target_slots).sum())
    return int(target_slots.sum()) / total if total else 0.0


def label_weights(
    weights: np.ndarray, rows: np.ndarray, segments: np.ndarray, scale: float
) -> np.ndarray:
    """The weight of each label times `scale`, float32 [B, T]; 0 at padding.

    `weights` are those of the pairs of these rows. Row r of `segments` [B, T] holds the pairs
    `rows[r]` to `rows[r + 1] - 1` as segments 1, 2, …; later rows are padding.
    """
    first = np.zeros((len(segments), 1), np.int64)
    first[: len(rows) - 1, 0] = rows[:-1]
    is_label = segments > 0
    scaled = np.zeros(segments.shape, np.float32)
    scaled[is_label] = weights[(first + segments - 1)[is_label]].astype(np.float64) * scale
    return scaled
