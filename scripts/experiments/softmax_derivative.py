"""The derivative of attention weights by the scores and by the query, and their entropy.

Axes: B rows · H heads · T queries · S keys · K head width. All in float64.
"""

import numpy as np


def entropy(weights: np.ndarray) -> np.ndarray:
    """The entropy of the distributions in the last axis, in nats."""
    return -(weights * np.log(np.maximum(weights, 1e-30))).sum(axis=-1)


def softmax_derivative(weights: np.ndarray) -> np.ndarray:
    """The derivative of a softmax by its scores, diag(w) − w wᵀ [..., S, S], without cancellation
    in w (1 − w) = w ∑ of the others."""
    w = weights.astype(np.float64)
    same = np.eye(w.shape[-1], dtype=bool)
    others = np.where(same, 0.0, w[..., None, :]).sum(axis=-1)
    return np.where(same, (w * others)[..., None], -w[..., None] * w[..., None, :])


def query_norms(derivative: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The norm of derivative · keys for each query [B, H, T]. The rows of the derivative have the
    sum 0, so −½ times the squared distances of the keys [B, H, S, K] replace their products."""
    keys = keys.astype(np.float64)
    products = keys @ keys.swapaxes(-1, -2)
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    distances = squares[..., None] + squares[..., None, :] - 2 * products
    square = ((derivative @ distances[:, :, None]) * derivative).sum(axis=(-2, -1)) / -2
    return np.sqrt(np.maximum(square, 0.0))
