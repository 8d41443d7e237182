"""Combinations of options: each training equals one that is stopped and resumed, and one in NumPy.

Every pair of values of two options occurs in a row (combined_options.py). The training of a row
that is stopped after some step and resumed has the same bits. reference_training.py computes it in
NumPy, from the lines of the corpora.
"""

import json
import math
from collections import defaultdict
from fractions import Fraction
from functools import partial

import jax
import numpy as np
import pytest

from seq2seq.data.batching.batches import Batches, DataPosition
from seq2seq.data.batching.packing import RowLayout
from seq2seq.runtime.signals import Stopped
from seq2seq.storage.run_files import steps
from seq2seq.training.parameters import init_params
from tests.support.marks import slow_except
from tests.support.models.bag_of_words import named
from tests.support.runs import state_bytes
from tests.training.combined_options import (
    COUNT,
    EVALUATED,
    EVERY,
    KEEP,
    ROWS,
    STEPS,
    config_of,
    lines,
    metrics,
    parts_of,
    rows,
    start_run,
    trained,
)
from tests.training.reference_training import Reference, pairs_of


# The fast rows have half of the pairs, and all values but schedules, of test_optimizer.py.
@pytest.mark.parametrize("number", slow_except((4, 5, 12), range(COUNT)))
def test_a_training_equals_a_resumed_one_and_one_in_numpy(tmp_path, number):
    row = rows()[number]
    config = config_of(row)
    trainer = trained(tmp_path / "whole", config, row["devices"])
    check_resumed(tmp_path, config, row["devices"], 1 + 5 * number % (trainer.step - 1))
    check_numpy(trainer, config, row)


def test_the_number_of_combinations():
    assert len(rows()) == COUNT


def check_resumed(path, config, devices, stop_after):
    """A training that is stopped after `stop_after` steps and resumed has the same bits."""
    whole, run = path / "whole", path / "run"
    with pytest.raises(Stopped):
        trained(run, config, devices, stop_after)
    assert steps(run)[-1] == stop_after
    trained(run, config, devices)
    assert state_bytes(run) == state_bytes(whole)
    assert metrics(run) == metrics(whole)
    assert steps(run) == steps(whole)
    assert (run / "best.json").read_bytes() == (whole / "best.json").read_bytes()


def check_numpy(trainer, config, row):
    """All steps, parameters and evaluations of a training are those of the reference."""
    logged = metrics(trainer.run.path)
    reference = Reference(trainer.config, initial_params(trainer, config))
    data, position, saved, epochs = Data(trainer, config, row), DataPosition(), {}, {}
    for step in range(1, trainer.step + 1):
        batch, weights, places = data.batch(position)
        expected = reference.step(batch, weights)
        entries = [entry for entry in logged if entry["step"] == step and "train_loss" in entry]
        skipped = trainer.run.path / "samples" / f"nonfinite-{step}.txt"
        assert skipped.exists() == (expected is None) == (not entries)
        if expected:
            assert_close({name: entries[0][name] for name in expected}, expected)
        else:
            assert skipped.read_text().splitlines() == places
        position = data.batches.next_position(position)
        saved[step], epochs[step] = reference.eval_params, position.epoch
    assert trainer.position == position and reference.updates > 0
    data.check_epochs(position.epoch)
    params = named(trainer.state.params)
    assert_close(params, reference.params)
    for name in params.keys() - {*reference.trained}:
        np.testing.assert_array_equal(params[name], reference.params[name])
    assert (trainer.state.ema is None) == (reference.ema is None)
    if config.training.optimizer == "adam":  # two moments of the trained parameters, two counts
        size = sum(params[name].size for name in reference.trained)
        assert sum(x.size for x in jax.tree.leaves(trainer.state.optimizer)) == 2 * size + 2
    check_evaluations(trainer, config, reference, saved, epochs)


def initial_params(trainer, config):
    """Those of the run to start from, else random ones."""
    if config.training.init_from:
        return start_run()[1]
    key, _ = jax.random.split(jax.random.PRNGKey(config.training.seed))
    return named(jax.jit(partial(init_params, trainer.model))(key))


def assert_close(values, expected):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


class Data:
    """The batches of a training, compared with the lines of its corpora."""

    def __init__(self, trainer, config, row):
        tokenizers, lengths = trainer.data.tokenizers, row["lengths"]
        self.tokenizer, self.weighted = tokenizers[0], row["loss_weights"]
        self.batches = Batches(trainer.data.train, ROWS, RowLayout(*lengths), row["seed"])
        self.parts, self.weights, self.places = [], {}, {}
        for share, corpus, pairs in parts_of(row):
            kept = [pair[:2] for pair in pairs if self.fits(pair, lengths)]
            self.parts.append((share, kept))
            for line, (*text, weight) in enumerate(pairs, 1):
                self.weights[tuple(text)] = weight
                self.places[tuple(text)] = f"{corpus.split(':', 1)[1]}:{line}"
        self.epochs = defaultdict(list)  # the texts of the pairs of each epoch

    def fits(self, pair, lengths):
        return all(
            len(self.tokenizer.encode(text)) < length
            for text, length in zip(pair[:2], lengths, strict=True)
        )

    def batch(self, position):
        """The batch at a position, and the loss weights and places of its pairs in the corpora."""
        batch = self.batches[position]
        texts, lengths, scaled = [], [], []
        for pair in pairs_of(batch):
            sides = pair.source[:-1], pair.labels[:-1]
            texts.append(tuple(map(self.tokenizer.decode, sides)))
            assert tuple(map(self.tokenizer.encode, texts[-1])) == sides
            lengths.append(len(pair.labels))
            scaled.append(pair.weight)
        self.epochs[position.epoch] += texts
        weights = np.array([self.weights[text] for text in texts])
        if self.weighted:  # their sum over the tokens is the number of tokens
            scale = sum(lengths) / np.dot(weights, lengths)
            np.testing.assert_allclose(scaled, scale * weights, rtol=1e-5)
        assert self.weighted or set(scaled) == {None}
        return batch, weights, [self.places[text] for text in texts]

    def check_epochs(self, count):
        """Each of `count` complete epochs takes as many pairs of a part as its weight says, and the
        epochs differ."""
        for epoch in range(count):
            texts, taken = self.epochs[epoch], 0
            for weight, pairs in self.parts:
                share = Fraction(str(weight)) * len(pairs)
                of_part = math.floor((epoch + 1) * share) - math.floor(epoch * share)
                assert sum(text in pairs for text in texts) <= of_part
                taken += of_part
            summary = self.batches.summary(DataPosition(epoch))
            assert len(texts) + summary.left_out == summary.pairs == taken
        starts = {tuple(texts[:5]) for texts in self.epochs.values()}
        assert len(starts) == len(self.epochs)


def check_evaluations(trainer, config, reference, saved, epochs):
    """Each step that is a multiple of EVERY, the last one and the average were evaluated, with the
    parameters that they should have, and determine the best checkpoint and the end.

    After each step, `saved` are the parameters for evaluation, and `epochs` the complete epochs.
    """
    training, path, last = config.training, trainer.run.path, trainer.step
    due = list(range(EVERY, last + 1, EVERY))
    evaluated = sorted({*due, last})
    averaged = [saved[step] for step in evaluated[-KEEP:]]
    params = {step: saved[step] for step in evaluated}
    params["average"] = {
        name: np.mean([tree[name] for tree in averaged], axis=0) for name in saved[last]
    }
    scores = evaluation_scores(trainer, reference, params, training.best_metric)
    best = best_of(scores)
    entry = json.loads((path / "best.json").read_text())
    assert (entry["checkpoint"], abs(entry[training.best_metric])) == (best, abs(scores[best][0]))
    final, sources = trainer.translator.used[-1]
    assert_close(final, params[best])
    assert sources == [pair[0] for pair in lines()[2]]

    waited = {
        step: due.index(step) - due.index(best_of({s: scores[s] for s in due if s <= step}))
        for step in due
    }  # the number of evaluations since the best one
    _, stored = state_bytes(path)  # without what is evaluated at the end
    before = best_of({step: scores[step] for step in due})
    state = before, due[-1], waited[due[-1]]
    names = "evaluated_step", "without_improvement"
    assert (stored["best"]["checkpoint"], *(stored[name] for name in names)) == state
    ends = [
        step
        for step in range(1, last + 1)
        if step == STEPS
        or 0 < training.max_epochs <= epochs[step]
        or 0 < training.patience <= waited.get(step, 0)
    ]
    assert ends == [last]
    kept = {*evaluated[-KEEP:], best} - {"average"}
    assert kept <= {*steps(path)} <= kept | {before}


def best_of(scores):
    """The checkpoint with the highest score; of equal ones the one with the lowest loss."""
    return max(scores, key=scores.get)


def evaluation_scores(trainer, reference, params, metric):
    """{checkpoint: (score, −loss)}, higher is better, after a comparison of all evaluations with
    those of the reference for `params`."""
    logged, scores = metrics(trainer.run.path), {}
    encode = trainer.data.tokenizers[0].encode
    pairs = [(encode(source), encode(target)) for source, target, _ in lines()[2]]
    used = trainer.translator.used
    assert len(used) == len(params) + 1
    for (checkpoint, expected), (values, sources) in zip(params.items(), used[:-1], strict=True):
        assert_close(values, expected)
        assert sources == [pair[0] for pair in lines()[2][:EVALUATED]]
        is_average = checkpoint == "average"
        step, prefix = (trainer.step, "average") if is_average else (checkpoint, "valid")
        (entry,) = [e for e in logged if e["step"] == step and f"{prefix}_loss" in e]
        expected = reference.evaluation(pairs, expected)
        assert_close({name: entry[f"{prefix}_{name}"] for name in expected}, expected)
        score, loss = entry[f"{prefix}_{metric}"], entry[f"{prefix}_loss"]
        scores[checkpoint] = -score if metric == "loss" else score, -loss
    return scores
