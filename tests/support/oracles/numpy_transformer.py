"""The Transformer in NumPy float64, one pair at a time, with all choices of ModelConfig.

It is written from the papers, and reads nothing of model/ but the names of parameters and fields.
Axes: T queries · S keys · D model width · H heads · K head width.
"""

import math

import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def numpy_logits(c, params, source, target):
    """[T, V] for a source and the decoder's input, lists of ids without padding."""
    tables = {name: params.get(f"{name}_embedding", params["target_embedding"])["table"]
              for name in ("source", "target", "output")}  # fmt: skip
    encoded = stack(c, params["encoder"], embedded(c, tables["source"], source), None)
    decoded = stack(c, params["decoder"], embedded(c, tables["target"], target), encoded)
    if c.scale_logits:
        decoded = decoded / math.sqrt(c.d_model)
    return decoded @ tables["output"].T + (params["output_bias"] if c.output_bias else 0)


def embedded(c, table, ids):
    return table[ids] * (math.sqrt(c.d_model) if c.scale_embeddings else 1)


def stack(c, params, x, encoded):
    causal, pre = encoded is not None, c.norm == "pre"
    if c.positions == "learned":
        x = x + params["positions"]["table"][: len(x)]
    if c.positions == "sinusoidal":
        x = x + fairseq_sinusoids(*x.shape)
    if c.embedding_norm:
        x = norm(c, params["embedding_norm"], x)
    for i in range(sum(name.startswith("layers_") for name in params)):
        layer = params[f"layers_{i}"]
        table = layer if c.relative_tables == "layer" else params
        bias = score_bias(c, table.get("relative_bias"), len(x), causal)
        sublayers = [
            ("self", lambda y, p=layer, b=bias: attention(c, p["self_attention"], y, y, b)),
            ("cross", lambda y, p=layer: attention(c, p["cross_attention"], y, encoded, 0)),
            ("feed_forward", lambda y, p=layer: feed_forward(c, p["feed_forward"], y)),
        ]
        for name, function in sublayers:
            if name != "cross" or causal:
                p = layer[f"around_{name}"]["norm"]
                x = x + function(norm(c, p, x)) if pre else norm(c, p, x + function(x))
    return norm(c, params["norm"], x) if pre else x


def norm(c, p, x):
    if c.norm_function == "layer":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + c.layer_norm_epsilon) * p["scale"]
    return y + p["bias"] if c.norm_function == "layer" else y


def feed_forward(c, p, x):
    inner, act = x @ p["inner"] + p.get("inner_bias", 0), ACTIVATIONS[c.activation]
    inner = act(x @ p["gate"]) * inner if c.gated_feed_forward else act(inner)
    return inner @ p["outer"] + p.get("outer_bias", 0)


def attention(c, p, x, y, bias):
    """`bias` [H, T, S] is −∞ where a query may not attend."""
    q, k, v = (
        np.einsum("td,dhk->htk", of, p[name]) + p.get(f"{name}_bias", np.zeros(1))[..., None, :]
        for name, of in (("query", x), ("key", y), ("value", y))
    )
    scores = q @ k.swapaxes(1, 2) / (math.sqrt(q.shape[-1]) if c.scale_scores else 1) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hts,hsk,hkd->td", weights, v, p["output"]) + p.get("output_bias", 0)


def score_bias(c, params, length, causal):
    bias = np.zeros((c.num_heads, length, length))
    for query, key in np.ndindex(length, length):
        if c.positions == "relative":
            bias[:, query, key] = params["table"][bucket(c, key - query, causal)]
        if c.positions == "alibi":
            bias[:, query, key] = -abs(key - query) * np.array(slopes(c.num_heads))
        if causal and key > query:
            bias[:, query, key] = -np.inf
    return bias


def bucket(c, r, causal):
    """The row of the table for key − query = r."""
    n, offset, m = c.relative_buckets, 0, max(-r, 0)
    if not causal:
        n, m = n // 2, abs(r)
        offset = n if r > 0 else 0
    e = n // 2
    if m < e:
        return offset + m
    ratio = math.log(m / e) / math.log(c.relative_distance / e)
    return offset + min(n - 1, e + math.floor(ratio * (n - e)))


def slopes(heads):
    """As in the code of Press et al. (2022)."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return slopes(closest) + slopes(2 * closest)[0::2][: heads - closest]


def fairseq_sinusoids(length, d):
    """concat(sin(p·w), cos(p·w)) with w_i = 10000^(−i/(d/2 − 1)) and p = t + 2."""
    angles = [
        [(t + 2) * 10000 ** (-i / (d // 2 - 1)) for i in range(d // 2)] for t in range(length)
    ]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
