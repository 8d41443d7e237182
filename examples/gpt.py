"""A decoder-only language model (GPT) that sorts digits, decoded by beam search with a cache.

    python examples/gpt.py
A line is "3 1 2 = 1 2 3". The digits up to "=" are a forced prefix of the search.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from seq2seq.model.attention import causal_mask
from seq2seq.model.cache import ancestry_mask, empty_caches
from seq2seq.model.config import ModelConfig
from seq2seq.model.layers import Embedding
from seq2seq.model.search.arguments import Prefix, SearchOptions, Targets
from seq2seq.model.search.beam_search import beam_search
from seq2seq.model.transformer import Stack, default_positions

START, END, EQUALS, FIRST, DIGITS, BEAMS = 1, 2, 3, 4, 4, 2  # a digit is FIRST … FIRST + 9
CONFIG = ModelConfig(target_vocab_size=14, d_model=32, d_ff=64, num_heads=4, num_layers=2,
                     norm="pre", positions="rotary", activation="gelu")  # fmt: skip


class GPT(nn.Module):
    config: ModelConfig

    def setup(self):
        self.embedding = Embedding(self.config, self.config.target_vocab_size)
        self.stack = Stack(self.config, self.config.num_layers)

    def __call__(self, tokens):
        """Logits [B, T, V] of the token after each one."""
        x, mask = self.embedding(tokens), causal_mask(tokens.shape[1])
        return self.embedding.to_logits(self.stack(x, mask, default_positions(tokens))[0])

    def step(self, tokens, caches, t, parents, ancestry):
        """One token of each of N hypotheses: a step of `beam_search`."""
        x, mask = self.embedding(tokens), ancestry_mask(ancestry)
        positions = jnp.broadcast_to(t[:, None], tokens.shape)
        x, caches = self.stack(x, mask, positions, caches=caches)
        return self.embedding.to_logits(x), caches


def main() -> float:
    """The share of lines with unseen digits that are sorted correctly."""
    digits = np.random.default_rng(0).integers(FIRST, FIRST + 10, (40_000, DIGITS))
    lines = np.c_[digits, np.full(40_000, EQUALS), np.sort(digits), np.full(40_000, END)]
    unseen = digits.sum(axis=1) % 7 == 0
    train, test = lines[~unseen], lines[unseen][:200]
    model, optimizer = GPT(CONFIG), optax.adam(3e-3)

    def loss(params, lines):
        inputs = jnp.pad(lines[:, :-1], ((0, 0), (1, 0)), constant_values=START)
        losses = optax.softmax_cross_entropy_with_integer_labels(model.apply(params, inputs), lines)
        return losses[:, DIGITS + 1 :].mean()  # only the sorted half

    @jax.jit
    def update(params, state, lines):
        changes, state = optimizer.update(jax.grad(loss)(params, lines), state)
        return optax.apply_updates(params, changes), state

    params = jax.jit(model.init)(jax.random.key(0), train[:1])
    state = optimizer.init(params)
    for batch in np.split(train[: 64 * 400], 400):
        params, state = update(params, state, batch)
    (rows, length), prefix = test.shape, Prefix(jnp.array(test), jnp.full(len(test), DIGITS + 1))
    hypotheses = jax.jit(lambda params: beam_search(
        lambda *inputs: model.apply(params, *inputs, method="step"),
        empty_caches(CONFIG, rows, length, BEAMS),
        Targets(jnp.full(rows, START), jnp.full(rows, length), prefix=prefix),
        SearchOptions(max_length=length, end_id=END, beam_size=BEAMS),
    ))(params)  # fmt: skip
    return float((hypotheses.tokens[:, 0] == test).all(axis=1).mean())


if __name__ == "__main__":
    print(f"sorted correctly: {main():.1%}")
