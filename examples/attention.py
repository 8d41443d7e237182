"""One attention call on plain arrays: no module, no parameters tree; compared with NumPy.

python examples/attention.py
"""

import jax
import numpy as np

from model.attention import AttentionParams, causal_mask, multi_head_attention, project_keys_values

B, T, D, H, K = 2, 5, 12, 3, 4  # rows · positions · model width · heads · head width


def in_numpy(params: AttentionParams, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The same, position by position."""
    output = np.zeros_like(x)
    for b, t, h in np.ndindex(B, T, H):
        seen = x[b, mask[t]]
        scores = seen @ params.key[:, h] @ (x[b, t] @ params.query[:, h]) / np.sqrt(K)
        weights = np.exp(scores) / np.exp(scores).sum()
        output[b, t] += weights @ seen @ params.value[:, h] @ params.output[h]
    return output


def main() -> float:
    """The largest difference between the two."""
    random = np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape, np.float32) / 3  # noqa: E731
    params = AttentionParams(draw(D, H, K), draw(D, H, K), draw(D, H, K), draw(H, K, D))
    x, mask = draw(B, T, D), causal_mask(T)

    @jax.jit
    def attend(params, x):
        # Keys and values are what is attended to: here x itself, or a memory, or a cache.
        return multi_head_attention(params, x, project_keys_values(params, x), mask)

    output, weights = attend(params, x)
    assert weights.shape == (B, H, T, T)
    return float(np.abs(output - in_numpy(params, x, np.array(mask[0, 0]))).max())


if __name__ == "__main__":
    print(f"largest difference from NumPy: {main():.1e}")
