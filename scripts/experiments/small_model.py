"""A small model on a generated task: batches, training, translation, accuracy.

Axes: B rows, one pair each · S source · T target. Everything but the batches is the project's own:
the train step, the loss, the optimizer and the search.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from seq2seq.config.special_tokens import OUR_IDS
from seq2seq.config.training_config import TrainingConfig
from seq2seq.data.batching.packing import Batch, RowLayout, pack_rows
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.model.config import ModelConfig
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.scoring import AttentionWeights, GivenPairs, teacher_forcing
from seq2seq.model.search.translate import Request, translate
from seq2seq.model.transformer import Transformer
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_train_step, split_rows
from seq2seq.training.step import init_state, make_train_step

Sequences = list[list[int]]  # token ids without start and end tokens
# The original method, its arguments and its options, which an interceptor receives.
Call = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = dict[str, Any]


class Task(NamedTuple):
    """Pairs of token ids. `sample(random, count)` returns `count` sources and their targets."""

    vocab_size: int
    source_length: int  # the longest source, the end token included
    target_length: int
    sample: Callable[[np.random.Generator, int], tuple[Sequences, Sequences]]


class Trained(NamedTuple):
    """A model with its trained parameters and the training loss of each step, in nats per token."""

    model: EncoderDecoder
    params: Any
    losses: np.ndarray

    @property
    def variables(self) -> dict[str, Any]:
        return {"params": self.params}


class Variant(Transformer):
    """A Transformer, some of whose methods are replaced while it is traced.

    `replace_call` is an interceptor of Flax: it receives the original method, its arguments and
    the module, and returns what the module returns instead.
    """

    replace_call: Callable

    @nn.nowrap
    def init(self, *inputs: Any, **options: Any) -> Any:
        with nn.intercept_methods(self.replace_call):
            return super().init(*inputs, **options)

    @nn.nowrap
    def apply(self, *inputs: Any, **options: Any) -> Any:
        with nn.intercept_methods(self.replace_call):
            return super().apply(*inputs, **options)


def is_call(context: Any, module: type, method: str = "__call__") -> bool:
    """Whether an interceptor is called for a method of a module of this class."""
    return isinstance(context.module, module) and context.method_name == method


def small_config(task: Task, **choices: Any) -> ModelConfig:
    """Two pre-norm layers of width 32 without dropout; `choices` replace fields."""
    size = task.vocab_size
    config = ModelConfig(
        source_vocab_size=size, target_vocab_size=size, d_model=32, d_ff=128, num_heads=4,
        num_layers=2, dropout=0.0, norm="pre", max_length=256,
    )  # fmt: skip
    return replace(config, **choices)


def batch_of(task: Task, sources: Sequences, targets: Sequences) -> Batch:
    """One pair in each row, padded to the lengths of the task."""
    pairs = Pairs(ragged(sources), ragged(targets))
    layout = RowLayout(task.source_length, task.target_length)
    return pack_rows(pairs, np.arange(len(sources) + 1), range(len(sources)), layout)


def small_training(seed: int, steps: int, **choices: Any) -> TrainingConfig:
    """A cosine schedule without label smoothing; `choices` replace fields."""
    config = TrainingConfig(
        num_steps=steps, seed=seed, schedule="cosine", learning_rate=3e-3,
        warmup_steps=max(1, steps // 10), label_smoothing=0.0,
    )  # fmt: skip
    return replace(config, **choices)


def train_model(
    model: EncoderDecoder,
    task: Task,
    config: TrainingConfig,
    rows: int = 64,
    feed: Callable[[Any, Batch], Batch] = lambda params, batch: batch,
) -> Trained:
    """Train on new pairs in each step. `feed` returns the batch of a step, given the parameters
    before it."""
    optimizer = make_optimizer(config, model.config.d_model)
    step = pmap_train_step(make_train_step(model, optimizer, config))
    state, random = init_state(model, optimizer, config), np.random.default_rng(config.seed)
    losses = []
    for _ in range(config.num_steps):
        batch = feed(state.params, batch_of(task, *task.sample(random, rows)))
        state, metrics = step(state, split_rows(batch, 1, 1))  # on one device
        losses.append(metrics["nll"])
    return Trained(model, state.params, np.array(jax.device_get(losses)))


def padded(sequences: Sequences, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [B, length] with the end token, and their lengths [B]."""
    ids = np.full((len(sequences), length), OUR_IDS.pad, np.int32)
    for row, tokens in enumerate(sequences):
        ids[row, : len(tokens) + 1] = [*tokens, OUR_IDS.end]
    return ids, np.array([len(tokens) + 1 for tokens in sequences], np.int32)


def best_hypotheses(
    trained: Trained, task: Task, sources: Sequences, beam_size: int = 1, alpha: float = 0.6
) -> tuple[Sequences, np.ndarray]:
    """The best hypothesis of each source, without its end token, and their log-probabilities."""
    ids, lengths = padded(sources, task.source_length)
    request = Request(
        jnp.asarray(ids), jnp.asarray(lengths), jnp.full(len(sources), task.target_length)
    )
    options = SearchOptions(task.target_length, OUR_IDS.end, beam_size=beam_size, alpha=alpha)

    @jax.jit
    def search_program(variables: Any, request: Request) -> Hypotheses:
        models = [(trained.model, variables)]
        return translate(models, request, options, lanes=len(sources))

    best = jax.device_get(search_program(trained.variables, request))
    tokens = [
        [int(token) for token in row[0, : length[0]] if token != OUR_IDS.end]
        for row, length in zip(best.tokens, best.lengths, strict=True)
    ]
    return tokens, best.log_probs[:, 0]


def exact_share(trained: Trained, task: Task, sources: Sequences, targets: Sequences) -> float:
    """The share of sources whose greedy translation is the target."""
    outputs, _ = best_hypotheses(trained, task, sources)
    return sum(map(list.__eq__, outputs, targets)) / len(targets)


def forced_pass(
    trained: Trained, task: Task, sources: Sequences, targets: Sequences
) -> tuple[np.ndarray, AttentionWeights]:
    """The logits [B, T, V] and the attention weights when each target token is predicted."""
    sides = *padded(sources, task.source_length), *padded(targets, task.target_length)
    run = jax.jit(partial(teacher_forcing, trained.model))
    return jax.device_get(run(trained.variables, GivenPairs(*map(jnp.asarray, sides))))


def token_accuracy(trained: Trained, task: Task, sources: Sequences, targets: Sequences) -> float:
    """The share of target tokens without end tokens that are predicted given those before."""
    logits, _ = forced_pass(trained, task, sources, targets)
    labels, lengths = padded(targets, task.target_length)
    inside = np.arange(task.target_length) < lengths[:, None] - 1
    return float((logits.argmax(axis=-1) == labels)[inside].mean())
