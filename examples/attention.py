"""One attention call on plain arrays, without modules or a parameter tree, compared with NumPy.

python examples/attention.py
"""

import jax
import numpy as np

from seq2seq.model.attention import (
    AttentionParams,
    causal_mask,
    multi_head_attention,
    project_keys_values,
)

B, T, D, H, K = 2, 5, 12, 3, 4  # rows · positions · model width · heads · head width


def numpy_attention(params: AttentionParams, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The same attention, position by position."""
    output = np.zeros_like(x)
    for b, t, h in np.ndindex(B, T, H):
        allowed = x[b, mask[t]]
        scores = allowed @ params.key[:, h] @ (x[b, t] @ params.query[:, h]) / np.sqrt(K)
        weights = np.exp(scores) / np.exp(scores).sum()
        output[b, t] += weights @ allowed @ params.value[:, h] @ params.output[h]
    return output


def main() -> float:
    """The largest difference from NumPy."""
    random = np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape, np.float32) / 3  # noqa: E731
    params = AttentionParams(draw(D, H, K), draw(D, H, K), draw(D, H, K), draw(H, K, D))
    x, mask = draw(B, T, D), causal_mask(T)

    @jax.jit
    def attend(params, x):
        # Keys and values may come from x itself, as here, from a memory, or from a cache.
        return multi_head_attention(params, x, project_keys_values(params, x), mask)

    output, weights = attend(params, x)
    assert weights.shape == (B, H, T, T)
    return float(np.abs(output - numpy_attention(params, x, np.array(mask[0, 0]))).max())


if __name__ == "__main__":
    print(f"largest difference from NumPy: {main():.1e}")
