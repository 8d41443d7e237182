"""A model whose gradient is written down in NumPy, and its translator: trainings of it are cheap.

The hidden state of a target position is the embedding of its input token, plus the embeddings of
the source, of which the one at position s counts 1 / (1 + s), divided by one plus the position.
Axes: B rows, S source, T target, D model width, V vocabulary.
"""

import random
import zlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from seq2seq.model.config import ModelConfig
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.layers import Dropout

BROKEN = 4  # the loss of a pair with this source token is not finite
MODEL = ModelConfig(
    d_model=32,
    max_length=32,
    tied_embeddings="none",
    scale_embeddings=False,
    output_bias=True,
    source_vocab_size=0,
    target_vocab_size=0,
)


class BagOfWords(EncoderDecoder):
    """To be registered as a kind of model."""

    def setup(self):
        super().setup()
        self.drop = Dropout(self.config.dropout)

    def hidden(
        self,
        source,
        target,
        source_segments,
        target_segments,
        positions=None,
        row_ids=None,
    ):
        # At the initialisation there are none.
        source_positions, target_positions = positions or (0 * source, 0 * target)
        pairs = target_segments[:, :, None] == source_segments[:, None, :]
        pairs &= source_segments[:, None, :] > 0  # [B, T, S]
        factors = pairs / (1.0 + source_positions)[:, None, :]
        memory = jnp.einsum("bts,bsd->btd", factors, self.source_embedding(source))
        broken = (pairs & (source == BROKEN)[:, None, :]).any(-1)
        memory = jnp.where(broken[:, :, None], jnp.inf, memory)
        memory = memory / (1.0 + target_positions)[:, :, None]
        return self.drop(self.target_embedding(target) + memory, row_ids)

    def mask(self, ones, row_ids):
        """The factors of dropout [B, T, D]."""
        return self.drop(ones, row_ids)


def named(tree):
    """{path: array} of a tree of parameters, in float64."""
    return {name: np.array(x, np.float64) for name, x in flatten_dict(tree, sep="/").items()}


def logits_of(params, source, inputs, mask=1.0):
    """(logits [T, V], hidden [T, D], 1 / (1 + s), 1 / (1 + t)) of a pair in NumPy."""
    near, early = (1.0 / np.arange(1, 1 + len(ids)) for ids in (source, inputs))
    memory = near @ params["source_embedding/table"][source]
    hidden = (params["target_embedding/table"][inputs] + np.outer(early, memory)) * mask
    return hidden @ params["output_embedding/table"].T + params["output_bias"], hidden, near, early


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def pair_sums(logits, labels, smoothing):
    """The sums of LossSums of a pair, and the gradient of its smoothed loss [T, V]."""
    log_probs = log_softmax(logits)
    places = np.arange(len(labels)), labels
    nll = -log_probs[places].sum()
    loss = (1 - smoothing) * nll - smoothing * log_probs.mean(-1).sum()
    wanted = np.full(logits.shape, smoothing / logits.shape[1])
    wanted[places] += 1 - smoothing
    correct = (logits[places] >= logits.max(-1)).sum()
    return np.array([loss, nll, correct, len(labels)]), np.exp(log_probs) - wanted


def divergence_of(logits, others):
    """KL(p ‖ q) + KL(q ‖ p), summed over the tokens of a pair, and its gradients [T, V] at the
    logits of p and of q."""

    def gradient(p, q, log_ratio):
        return p - q + p * (log_ratio - (p * log_ratio).sum(-1, keepdims=True))

    log_p, log_q = log_softmax(logits), log_softmax(others)
    p, q, log_ratio = np.exp(log_p), np.exp(log_q), log_p - log_q
    value = ((p - q) * log_ratio).sum()
    return value, gradient(p, q, log_ratio), gradient(q, p, -log_ratio)


def add_gradient(total, params, source, inputs, at_logits, hidden, near, early, mask=1.0):
    """Add the gradient of a pair, from that at its logits, to `total`."""
    at_hidden = (at_logits @ params["output_embedding/table"]) * mask
    total["output_embedding/table"] += at_logits.T @ hidden
    total["output_bias"] += at_logits.sum(0)
    np.add.at(total["target_embedding/table"], inputs, at_hidden)
    np.add.at(total["source_embedding/table"], source, np.outer(near, early @ at_hidden))


class RandomTranslator:
    """Translations that are a function of all bits of the parameters: more or less is correct.

    `used` are the parameters and the sources that were translated with them, in turn.
    """

    def __init__(self, *_, **__):
        self.used = []

    def use(self, params):
        arrays = [np.array(x) for x in jax.tree.leaves(params)]
        self.random = random.Random(zlib.crc32(b"".join(x.tobytes() for x in arrays)))
        self.quality = self.random.uniform(0.5, 1.0)
        self.used.append((named(params), []))

    def stream(self, items, first):
        self.used[-1][1].extend(items)
        return [SimpleNamespace(text=self.translation(item)) for item in items]

    def translation(self, source):
        words = source.upper()[::-1].split()
        return " ".join(w if self.random.random() < self.quality else "NO" for w in words)
