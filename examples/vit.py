"""A vision transformer that classifies the direction of a stroke in a noisy picture.

    python examples/vit.py
A picture is cut into patches; each patch is a token. Positions are learned.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from seq2seq.model.config import ModelConfig
from seq2seq.model.matmul import FULL
from seq2seq.model.transformer import Stack

SIZE, PATCH, STROKE = 12, 4, 7
DIRECTIONS = np.array([(0, 1), (1, 0), (1, 1), (1, -1)])  # – | \ /
CONFIG = ModelConfig(
    d_model=32, d_ff=64, num_heads=4, num_layers=2, norm="pre", positions="learned",
    max_length=(SIZE // PATCH) ** 2, activation="gelu",
)  # fmt: skip


def patches(pictures: jax.Array) -> jax.Array:
    """[B, SIZE, SIZE] → [B, patches, PATCH²]."""
    across = SIZE // PATCH
    cut = pictures.reshape(-1, across, PATCH, across, PATCH)
    return jnp.swapaxes(cut, 2, 3).reshape(-1, across**2, PATCH**2)


class VisionTransformer(nn.Module):
    config: ModelConfig
    classes: int

    @nn.compact
    def __call__(self, pictures):
        """Logits [B, classes]. There is no mask: every patch attends to every patch."""
        x = nn.Dense(self.config.d_model, precision=FULL)(patches(pictures))
        positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
        x, _ = Stack(self.config, self.config.num_layers)(x, None, positions)
        return nn.Dense(self.classes, precision=FULL)(x.mean(axis=1))


def strokes(random: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with one stroke at a random place, and its direction."""
    pictures = random.normal(0.0, 0.3, (number, SIZE, SIZE)).astype(np.float32)
    answers = random.integers(0, len(DIRECTIONS), number)
    middle = random.integers(STROKE // 2, SIZE - STROKE // 2, (number, 2))
    steps = np.arange(STROKE) - STROKE // 2
    places = middle[:, None] + steps[:, None] * DIRECTIONS[answers][:, None]
    pictures[np.arange(number)[:, None], places[..., 0], places[..., 1]] += 1.0
    return pictures, answers


def main() -> float:
    """The accuracy on new pictures; chance is 0.25."""
    random = np.random.default_rng(0)
    model, optimizer = VisionTransformer(CONFIG, len(DIRECTIONS)), optax.adam(2e-3)

    def loss(params, pictures, answers):
        logits = model.apply(params, pictures)
        return optax.softmax_cross_entropy_with_integer_labels(logits, answers).mean()

    @jax.jit
    def update(params, state, *batch):
        changes, state = optimizer.update(jax.grad(loss)(params, *batch), state)
        return optax.apply_updates(params, changes), state

    params = jax.jit(model.init)(jax.random.key(0), strokes(random, 1)[0])
    state = optimizer.init(params)
    for _ in range(400):
        params, state = update(params, state, *strokes(random, 64))
    pictures, answers = strokes(random, 500)
    return float((jnp.argmax(jax.jit(model.apply)(params, pictures), axis=-1) == answers).mean())


if __name__ == "__main__":
    print(f"accuracy: {main():.1%}")
