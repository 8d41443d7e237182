"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), complete in one file.

    python examples/minimal_transformer.py
It learns to reverse words. Read it before `model/`, which computes the same logits from the same
tree of parameters and adds dropout, packed sentences, bfloat16, caches, beam search and options.
Axes: B batch · S source · T target · D model width · H heads · K head width · F feed-forward · V
vocabulary.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAD, START, END, FIRST = 0, 1, 2, 3  # the ids of three special tokens and of the first letter
V, LONGEST = FIRST + len(LETTERS), 6  # letters of the longest word
D, F, H, LAYERS = 64, 256, 4, 2  # the paper's base model: 512, 2048, 8, 6 (table 3)


def attention(queries, keys, values, mask):
    """softmax(Q Kᵀ / √d_k) V (section 3.2.1, equation 1); True in the mask: may attend."""
    scores = jnp.einsum("bhtk,bhsk->bhts", queries, keys)  # [B, H, T, S]
    scores = scores / queries.shape[-1] ** 0.5  # else their variance is d_k, and softmax saturates
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))  # [B, H, T, S]; rows sum to 1
    return jnp.einsum("bhts,bhsk->bhtk", weights, values)  # [B, H, T, K]


def multi_head_attention(params, x, memory, mask):
    """Concat(head_1, …, head_h) W^O (section 3.2.2): queries from x, keys and values from memory.
    With memory = x it is self-attention, else cross-attention (section 3.2.3)."""
    queries = jnp.einsum("btd,dhk->bhtk", x, params["query"])  # [B, H, T, K]
    keys = jnp.einsum("bsd,dhk->bhsk", memory, params["key"])  # [B, H, S, K]
    values = jnp.einsum("bsd,dhk->bhsk", memory, params["value"])  # [B, H, S, K]
    heads = attention(queries, keys, values, mask)  # [B, H, T, K]
    return jnp.einsum("bhtk,hkd->btd", heads, params["output"])  # [B, T, D]


def feed_forward(params, x):
    """max(0, x W_1 + b_1) W_2 + b_2 at each position (section 3.3, equation 2)."""
    inner = jax.nn.relu(x @ params["inner"] + params["inner_bias"])  # [B, T, F]
    return inner @ params["outer"] + params["outer_bias"]  # [B, T, D]


def add_and_norm(params, x, y):
    """LayerNorm(x + Sublayer(x)) (section 3.1)."""
    x = x + y  # [B, T, D]
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)  # [B, T, D]
    return x * params["norm"]["scale"] + params["norm"]["bias"]  # [B, T, D]


def layer(params, x, mask, memory=None, memory_mask=None):
    """A layer of figure 1: with memory of the decoder, without of the encoder."""
    y = multi_head_attention(params["self_attention"], x, x, mask)  # [B, T, D]
    x = add_and_norm(params["around_self"], x, y)  # [B, T, D]
    if memory is not None:
        y = multi_head_attention(params["cross_attention"], x, memory, memory_mask)  # [B, T, D]
        x = add_and_norm(params["around_cross"], x, y)  # [B, T, D]
    return add_and_norm(params["around_feed_forward"], x, feed_forward(params["feed_forward"], x))


def positions(length):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(…) (section 3.5)."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, D, 2) / D)  # [T, D/2]
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, D)  # [T, D]


def embed(params, ids):
    """Rows of the table, times √d_model so that they are as large as positions (section 3.4)."""
    return params["target_embedding"]["table"][ids] * D**0.5 + positions(ids.shape[1])  # [B, T, D]


def encode(params, source, lengths):
    """The output of the left stack of figure 1, and the mask: no query attends to padding."""
    mask = (jnp.arange(source.shape[1]) < lengths[:, None])[:, None, None]  # [B, 1, 1, S]
    x = embed(params, source)  # [B, S, D]
    for i in range(LAYERS):
        x = layer(params["encoder"][f"layers_{i}"], x, mask)  # [B, S, D]
    return x, mask


def decode(params, inputs, memory, memory_mask):
    """Logits [B, T, V] of the token after each of the inputs [B, T]: the right stack of figure 1.
    The table of the embeddings is also the last linear map (section 3.4)."""
    causal = jnp.tril(jnp.ones((inputs.shape[1],) * 2, bool))  # [T, T]: not to later positions
    x = embed(params, inputs)  # [B, T, D]
    for i in range(LAYERS):
        x = layer(params["decoder"][f"layers_{i}"], x, causal, memory, memory_mask)  # [B, T, D]
    return x @ params["target_embedding"]["table"].T  # [B, T, V]


def init_params(key):
    """Xavier-uniform weights, norms that change nothing, embeddings of standard deviation 1/√D."""
    keys = iter(jax.random.split(key, 1000))

    def weight(*shape, inputs=D, outputs=D):
        limit = (6 / (inputs + outputs)) ** 0.5
        return jax.random.uniform(next(keys), shape, minval=-limit, maxval=limit)

    def attention_params():
        params = {name: weight(D, H, D // H) for name in ("query", "key", "value")}
        return params | {"output": weight(H, D // H, D)}

    def layer_params(attentions):
        params = {f"{name}_attention": attention_params() for name in attentions}
        inner, outer = weight(D, F, outputs=F), weight(F, D, inputs=F)
        biases = {"inner_bias": jnp.zeros(F), "outer_bias": jnp.zeros(D)}
        params["feed_forward"] = {"inner": inner, "outer": outer, **biases}
        for name in (*attentions, "feed_forward"):
            params[f"around_{name}"] = {"norm": {"scale": jnp.ones(D), "bias": jnp.zeros(D)}}
        return params

    return {
        "target_embedding": {"table": jax.random.normal(next(keys), (V, D)) / D**0.5},
        "encoder": {f"layers_{i}": layer_params(["self"]) for i in range(LAYERS)},
        "decoder": {f"layers_{i}": layer_params(["self", "cross"]) for i in range(LAYERS)},
    }


def loss(params, source, lengths, target, target_lengths, smoothing=0.1):
    """Cross-entropy of a token against (1 − ε) one-hot + ε / V (section 5.4), with teacher forcing:
    the input at each position is the token before it."""
    inputs = jnp.pad(target, ((0, 0), (1, 0)), constant_values=START)[:, :-1]  # [B, T]
    logits = decode(params, inputs, *encode(params, source, lengths))  # [B, T, V]
    log_probs = jax.nn.log_softmax(logits)  # [B, T, V]
    of_label = jnp.take_along_axis(log_probs, target[..., None], axis=-1)[..., 0]  # [B, T]
    losses = -(1 - smoothing) * of_label - smoothing * log_probs.mean(-1)  # [B, T]
    inside = jnp.arange(target.shape[1]) < target_lengths[:, None]  # [B, T]
    return (losses * inside).sum() / inside.sum()


@partial(jax.jit, donate_argnums=0)
def train_step(state, batch, warmup=200):
    """Adam (section 5.3): β_1 = 0.9, β_2 = 0.98, ε = 10⁻⁹, and the learning rate of equation 3."""
    params, mean, variance, step = state
    step = step + 1
    rate = D**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)
    value, gradients = jax.value_and_grad(loss)(params, *batch)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
    variance = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g * g, variance, gradients)
    new = jax.tree.map(
        lambda p, m, v: p - rate * m / (1 - 0.9**step) / (jnp.sqrt(v / (1 - 0.98**step)) + 1e-9),
        params, mean, variance,
    )  # fmt: skip
    return (new, mean, variance, step), value


@jax.jit
def translate(params, source, lengths):
    """Greedy decoding: the most probable token is the next input. Returns ids [B, LONGEST + 1].
    Each step computes all positions again; model/ has a cache."""
    memory, mask = encode(params, source, lengths)  # [B, S, D], [B, 1, 1, S]

    def step(t, inputs):  # inputs [B, T]; those after t are not read
        logits = decode(params, inputs, memory, mask)[:, t]  # [B, V]
        return inputs.at[:, t + 1].set(logits.argmax(-1))

    inputs = jnp.full((len(source), LONGEST + 2), START)  # [B, T]
    return jax.lax.fori_loop(0, LONGEST + 1, step, inputs)[:, 1:]


def batch_of(words):
    """Ids [B, LONGEST + 1] of words with the end token and padding, and their lengths [B]."""
    ids = np.full((len(words), LONGEST + 1), PAD)
    for row, word in zip(ids, words, strict=True):
        row[: len(word) + 1] = *(FIRST + LETTERS.index(letter) for letter in word), END
    return ids, np.array([len(word) + 1 for word in words])


def text_of(ids):
    return "".join(LETTERS[i - FIRST] for i in list(ids)[: [*ids, END].index(END)])


def main(steps=800) -> float:
    """The share of 256 unseen words that are reversed without an error."""
    random = np.random.default_rng(0)

    def words(number):
        lengths = random.integers(3, LONGEST + 1, number)
        return ["".join(random.choice(list(LETTERS), length)) for length in lengths]

    params = init_params(jax.random.key(0))
    mean, variance = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    state = params, mean, variance, jnp.float32(0)
    for step in range(1, steps + 1):
        sources = words(128)
        targets = [word[::-1] for word in sources]
        state, value = train_step(state, (*batch_of(sources), *batch_of(targets)))
        if step % 200 == 0:
            print(f"step {step}: loss {value:.3f}")
    sources = words(256)
    outputs = list(map(text_of, np.asarray(translate(state[0], *batch_of(sources)))))
    print(*(f"{a} → {b}" for a, b in list(zip(sources, outputs, strict=True))[:10]), sep="\n")
    return float(np.mean([a[::-1] == b for a, b in zip(sources, outputs, strict=True)]))


if __name__ == "__main__":
    print(f"reversed without an error: {main():.1%}")
