"""An encoder-only classifier (BERT-like): is the first word of a sentence repeated?

    python examples/bert.py
Sentences have different lengths. The classifier reads the output at the first position.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from seq2seq.model.attention import segment_mask
from seq2seq.model.config import ModelConfig
from seq2seq.model.layers import Embedding
from seq2seq.model.matmul import FULL
from seq2seq.model.transformer import Stack, default_positions

CLS, FIRST, WORDS, LONGEST = 1, 2, 12, 8
CONFIG = ModelConfig(
    d_model=32, d_ff=64, num_heads=4, num_layers=2, norm="pre", positions="learned",
    max_length=LONGEST + 1, activation="gelu",
)  # fmt: skip


class Bert(nn.Module):
    config: ModelConfig
    classes: int

    def setup(self):
        self.embedding = Embedding(self.config, FIRST + WORDS)
        self.stack = Stack(self.config, self.config.num_layers)
        self.head = nn.Dense(self.classes, precision=FULL)

    def __call__(self, tokens, segments):
        """Logits [B, classes]. Segment 0 is padding, for any tokens."""
        mask = segment_mask(segments, segments)
        x, _ = self.stack(self.embedding(tokens), mask, default_positions(tokens))
        return self.head(x[:, 0])


def sentences(random: np.random.Generator, number: int) -> tuple[np.ndarray, ...]:
    """Tokens and segments [number, LONGEST + 1] and the answers, half of them 1."""
    words = random.integers(FIRST, FIRST + WORDS, (number, LONGEST))
    lengths = random.integers(3, LONGEST + 1, number)
    repeated = random.integers(0, 2, number)
    same = words[:, 1:] == words[:, :1]
    words[:, 1:] = np.where(same, (words[:, 1:] - FIRST + 1) % WORDS + FIRST, words[:, 1:])
    where = random.integers(1, lengths)
    words[np.arange(number), where] = np.where(repeated, words[:, 0], words[range(number), where])
    segments = (np.arange(LONGEST + 1) <= lengths[:, None]).astype(np.int32)
    return np.pad(words, ((0, 0), (1, 0)), constant_values=CLS), segments, repeated


def main() -> float:
    """The accuracy on new sentences; chance is 0.5."""
    random = np.random.default_rng(0)
    model, optimizer = Bert(CONFIG, classes=2), optax.adam(3e-3)

    def loss(params, tokens, segments, answers):
        logits = model.apply(params, tokens, segments)
        return optax.softmax_cross_entropy_with_integer_labels(logits, answers).mean()

    @jax.jit
    def update(params, state, *batch):
        changes, state = optimizer.update(jax.grad(loss)(params, *batch), state)
        return optax.apply_updates(params, changes), state

    params = jax.jit(model.init)(jax.random.key(0), *sentences(random, 1)[:2])
    state = optimizer.init(params)
    for _ in range(400):
        params, state = update(params, state, *sentences(random, 64))
    *inputs, answers = sentences(random, 500)
    return float((jnp.argmax(jax.jit(model.apply)(params, *inputs), axis=-1) == answers).mean())


if __name__ == "__main__":
    print(f"accuracy: {main():.1%}")
