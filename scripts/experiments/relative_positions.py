"""Rotary and sinusoidal positions describe distances

Claim: the score of a rotated query and key depends on their distance only (Su et al. 2021, equation
16). The encoding of position p + k is a linear function of that of p (Vaswani et al. 2017, section
3.5). Inner products of sinusoids decrease with the distance.

Measurement: scores of random queries and keys of width 64 at the positions (p, p + k) for many p,
once rotated and once with sinusoids added; for each distance k, the standard deviation over p,
relative to that over all random pairs. For sinusoids of width 512: the largest error of PE(p + k) =
M_k PE(p) with block-diagonal rotations M_k, the range of the inner products of one distance over p,
and the first distance below 256 at which the inner product is larger than at the distance before.

Rule, in each seed: the deviation of rotated scores is below 0.001 and that of sinusoids above 0.1;
the error of the linear map is below 0.001; the inner products decrease at each of the distances
1 to 128.

Remark: the inner product is a sum of cosines of different frequencies. It falls steeply near
distance 0 and then oscillates, so it decreases on average, not at each distance.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from seq2seq.model.positions import rotate, sinusoidal_positions
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values

CLAIM = "Rotary scores depend on the distance only; sinusoids encode it too."
ARMS = ("rotary", "sinusoidal")
WIDTH, D_MODEL = 64, 512
DISTANCES, STARTS, PAIRS, FARTHEST = (0, 1, 5, 20, 100), 64, 200, 256


def measure(arm: str, seed: int, size: str) -> Result:
    """The deviation of scores of equal distance; of sinusoids, also their inner products."""
    random = np.random.default_rng(seed)
    result: Result = {"deviation": score_deviation(arm, random)}
    if arm == "sinusoidal":
        table = sinusoidal_positions(2 * FARTHEST + STARTS, D_MODEL).astype(np.float64)
        starts = random.choice(FARTHEST, STARTS, replace=False)
        shift = int(random.integers(1, FARTHEST))
        error = table[starts + shift] - table[starts] @ shift_map(shift, D_MODEL).T
        products = np.array([(table[starts] * table[starts + k]).sum(1) for k in range(FARTHEST)])
        mean = products.mean(axis=1)
        result |= {
            "error": np.abs(error).max(),
            "range": np.ptp(products, axis=1).max(),
            "products": (mean / mean[0])[::4],
            "first_rise": first_rise(mean),
            "correlation": np.corrcoef(np.arange(FARTHEST), mean)[0, 1],
        }
    return result


def first_rise(products: np.ndarray) -> int:
    """The first distance at which the product is larger than at the distance before; the number of
    distances if there is none."""
    rises = np.flatnonzero(np.diff(products) > 0)
    return 1 + int(rises[0]) if len(rises) else len(products)


def score_deviation(arm: str, random: np.random.Generator) -> float:
    """The standard deviation of scores of equal distance, relative to that of random pairs."""
    queries, keys = random.standard_normal((2, PAIRS, WIDTH)).astype(np.float32)
    starts = random.choice(FARTHEST, STARTS, replace=False)
    largest = 0.0
    for distance in DISTANCES:
        first = scored(arm, queries, starts)
        second = scored(arm, keys, starts + distance)
        scores = (first * second).sum(axis=-1)  # [PAIRS, STARTS]
        largest = max(largest, float(scores.std(axis=1).mean() / scores.mean(axis=1).std()))
    return largest


def scored(arm: str, vectors: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Each vector [PAIRS, K] at each position, [PAIRS, STARTS, K], float64."""
    places = np.broadcast_to(positions, (len(vectors), len(positions)))
    repeated = np.repeat(vectors[:, None], len(positions), axis=1)
    if arm == "rotary":
        return np.asarray(rotate(jnp.array(repeated[:, None]), jnp.array(places)), np.float64)[:, 0]
    return repeated + sinusoidal_positions(int(positions.max()) + 1, WIDTH)[places]


def shift_map(shift: int, d_model: int) -> np.ndarray:
    """The matrix M with PE(p + shift) = M PE(p) for all p: a rotation of each pair sin, cos."""
    matrix = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        angle = shift * 10000.0 ** (-i / d_model)
        sin, cos = np.sin(angle), np.cos(angle)
        matrix[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    return matrix


def judge(results: Results) -> list[Check]:
    rotary, added = (values(results, arm, "deviation") for arm in ARMS)
    error = values(results, "sinusoidal", "error")
    rises = values(results, "sinusoidal", "first_rise")
    correlation = np.mean(values(results, "sinusoidal", "correlation"))
    first = min(rises)
    rise = f"rise for the first time at distance {first}" if first < FARTHEST else "never rise"
    return [
        Check(
            f"scores of equal distance deviate by {max(rotary):.0e} (rotary) and "
            f"{spread(added)} (sinusoids added)",
            max(rotary) < 1e-3 and min(added) > 0.1,
            f"rotary scores of equal distance deviate by {max(rotary):.0e}",
        ),
        Check(f"the linear map has an error of {max(error):.0e}", max(error) < 1e-3),
        Check(
            f"over the distances below {FARTHEST}, inner products of sinusoids {rise} "
            f"(correlation with the distance: {correlation:.2f})",
            first > 128,
        ),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("inner product of sinusoids (1 at distance 0)", width=5.0)
    products = [result["products"] for result in results["sinusoidal"]]
    curve(axes[0], range(0, FARTHEST, 4), products, f"d_model = {D_MODEL}")
    axes[0].set_xlabel("distance")
    axes[0].legend()
    return figure
