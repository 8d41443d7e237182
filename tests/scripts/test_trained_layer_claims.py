"""The trained claims on layers, the context vector and teacher forcing, each with a control.

The control, which must fail, is the same rule on results in which a model without the effect takes
the place of the one with it. Some rules need the full size; here only those are tested that a small
one decides.
"""

import jax
import numpy as np
import pytest

from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments import feed_forward_layers, residual_connections, teacher_forcing
from seq2seq.scripts.experiments.small_model import Trained, batch_of, best_hypotheses, small_config
from seq2seq.training.parameters import init_params
from tests.scripts.tiny_claims import held, one_compilation  # noqa: F401

pytestmark = pytest.mark.slow


def test_vectors_collapse_without_residual_connections_whether_or_not_with_feed_forward_layers():
    module = feed_forward_layers
    everything, _, no_residuals, neither = module.ARMS
    results = {
        arm: [{"distance": module.distances(arm, 0), "accuracy": [1.0], "depths": [1]}]
        for arm in module.ARMS
    }
    assert held(module, results, 0, 1) == [True, False]
    assert held(module, results | {neither: results["without"]}, 0) == [False]
    assert held(module, results | {no_residuals: results[everything]}, 1) == [True]


def test_the_exclusive_or_needs_feed_forward_layers_by_at_least_a_fifth_of_the_tokens():
    """Of made-up accuracies: after a training of the size tiny that of "without" lies anywhere
    between 0.69 and 0.93, depending on the seed and on rounding."""
    module = feed_forward_layers
    everything, without, *_ = module.ARMS

    def results(accuracy, accuracy_without):
        values = dict.fromkeys(module.ARMS, 0.0)
        values |= {everything: accuracy, without: accuracy_without}
        return {
            arm: [{"distance": [1.0], "depths": [1], "accuracy": [value]}]
            for arm, value in values.items()
        }

    assert held(module, results(0.98, 0.77), 2, 3) == [True, True]
    assert held(module, results(0.77, 0.98), 2, 3) == [False, False]
    assert held(module, results(0.98, 0.79), 2, 3) == [False, True]  # too near
    assert held(module, results(0.89, 0.5), 2, 3) == [False, True]  # not learned


def test_gradients_leave_their_range_without_norms():
    module = residual_connections
    gradients = {arm: module.gradient_norms(arm, 0) for arm in ("post", "no norms")}
    results = {
        arm: [{"gradients": gradients.get(arm, gradients["post"]), "warmup": 1.0, "no_warmup": 1.0}]
        for arm in module.ARMS
    }
    assert held(module, results, 0, 2) == [True, True]
    control = results | {"post": results["no norms"], "no norms": results["post"]}
    assert held(module, control, 0, 2) == [False, False]


def test_own_tokens_are_the_greedy_output_shifted_by_one():
    task = teacher_forcing.running_sums(range(4, 9))
    model = Transformer(small_config(task))
    trained = Trained(model, init_params(model, jax.random.key(0)), np.zeros(0))
    sources, targets = task.sample(np.random.default_rng(0), 8)
    output = teacher_forcing.greedy_output(model, task.target_length)
    batch = teacher_forcing.own_tokens(output)(trained.params, batch_of(task, sources, targets))
    hypotheses, _ = best_hypotheses(trained, task, sources)
    for row, hypothesis, target in zip(batch.decoder_input, hypotheses, targets, strict=True):
        length = min(len(hypothesis), len(target))
        assert row[0] == 1 and row[1 : length + 1].tolist() == hypothesis[:length]
        assert not row[len(target) + 1 :].any()
