"""Geometry of vectors: cosine distances, nearest means, principal components."""

import numpy as np


def cosine_distance(vectors: np.ndarray) -> float:
    """The mean of 1 − cosine over the pairs of different rows of [n, D]."""
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    n = len(unit)
    return float(1 - ((unit @ unit.T).sum() - n) / (n * (n - 1)))


def found_share(vectors: np.ndarray, classes: np.ndarray) -> float:
    """The share of rows whose class has the nearest mean, computed without the row itself."""
    if np.ptp(vectors, axis=0).max() < 1e-6:
        return 1 / len(set(classes))  # equal vectors: chance
    correct = 0
    for row in range(len(vectors)):
        others = np.arange(len(vectors)) != row
        means = [vectors[others & (classes == c)].mean(axis=0) for c in sorted(set(classes))]
        correct += int(np.linalg.norm(means - vectors[row], axis=1).argmin() == classes[row])
    return correct / len(vectors)


def projection(vectors: np.ndarray) -> np.ndarray:
    """The first two principal components of [n, D]."""
    centred = vectors - vectors.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
