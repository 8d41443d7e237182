"""Evaluation: the best checkpoint, and scores from sums, with a translator that is a table."""

import json
import math
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from data.corpus import Corpus, Origin
from data.pairs import Pairs, ragged
from storage.config import Config, TrainingConfig
from storage.run import Run
from training.best import BestCheckpoint
from training.evaluate import Evaluator, held_out_loss, samples
from training.loss import LossSums

REFERENCES = [f"the {word} sees the small dog" for word in ("cat", "man", "bird", "king")]
WRONG = ["no"] * 4


class TableTranslator:
    """A translator whose parameters are (loss, translations)."""

    def use(self, params):
        self.texts = params[1]

    def stream(self, items, first):
        return [SimpleNamespace(text=text) for text in self.texts[first : first + len(items)]]


def eval_step(params, rows):
    """Sums for `params` = (loss per token, texts); the unsmoothed loss is half of it."""
    tokens = float((rows.target_segments > 0).sum())
    return LossSums(*(np.float32(x * tokens) for x in (params[0], params[0] / 2, 0.25, 1.0)))


def held_out():
    ids = ragged([[5, 6, 7]] * 4)
    origins = (Origin(("valid", "valid"), 4),)
    corpus = Corpus(REFERENCES, REFERENCES, array("q", range(1, 5)), origins, {}, 0, {}, {})
    return corpus, Pairs(ids, ids)


@pytest.fixture
def evaluator(tmp_path):
    def make(**training):
        run = Run(tmp_path / "run")
        runs.append(run)
        run.open_metrics(0)
        config = Config(training=TrainingConfig(**training))
        return Evaluator(config, run, held_out(), eval_step, TableTranslator())

    runs = []
    yield make
    for run in runs:
        run.close()


def texts(correct):
    """Translations of which the first `correct` are correct."""
    return REFERENCES[:correct] + WRONG[correct:]


def test_the_best_checkpoint_by_bleu_has_the_highest_bleu(evaluator):
    one = evaluator(best_metric="bleu")
    for step, correct in ((1, 1), (2, 3), (3, 2), (4, 3)):
        one.evaluate(step, step, (1.0 / step, texts(correct)))
    assert one.best.entry["checkpoint"] == 2
    assert 50.0 < one.best.entry["bleu"] < 100.0
    assert one.best.without_improvement == 2 and one.best.evaluated_step == 4


def test_the_best_checkpoint_by_loss_has_the_lowest_loss(evaluator):
    one = evaluator(best_metric="loss")
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 1.0)):
        one.evaluate(step, step, (loss, texts(step % 4)))
    assert one.best.entry == {"checkpoint": 2, "loss": 1.0}


@pytest.mark.parametrize("patience, exhausted", [(0, False), (1, True), (2, True), (3, False)])
def test_patience_counts_consecutive_evaluations_without_improvement(
    evaluator, patience, exhausted
):
    one = evaluator(best_metric="loss", patience=patience)
    for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0), (4, 1.5), (5, 1.5)):
        one.evaluate(step, step, (loss, REFERENCES))
    assert one.patience_exhausted == exhausted


def test_undo_restores_the_previous_best_if_the_best_step_was_not_saved(evaluator):
    one = evaluator(best_metric="loss")
    for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0)):
        one.evaluate(step, step, (loss, REFERENCES))
    one.best.undo(2)
    assert one.best.entry["checkpoint"] == 3
    one.best.undo(3)
    assert one.best.entry["checkpoint"] == 1 and one.best.without_improvement == 1


def test_the_best_checkpoint_is_restored_from_json(evaluator):
    one = evaluator(best_metric="loss")
    one.evaluate(1, 1, (2.0, REFERENCES))
    one.evaluate(2, 2, (3.0, REFERENCES))
    stored = json.loads(json.dumps(one.best.to_json()))
    one.best.reset()
    assert not one.best.entry
    restored = BestCheckpoint("loss")
    restored.restore(stored)
    assert restored.entry["checkpoint"] == 1
    assert (restored.without_improvement, restored.evaluated_step) == (1, 2)


def test_perplexity_is_computed_from_the_unsmoothed_loss():
    metrics = held_out_loss(eval_step, (3.0, None), held_out()[1], Config())
    assert metrics["valid_loss"] == pytest.approx(3.0)
    assert metrics["valid_nll"] == pytest.approx(1.5)
    assert metrics["valid_perplexity"] == pytest.approx(math.exp(1.5))
    assert metrics["valid_accuracy"] == pytest.approx(0.25)
    huge = held_out_loss(eval_step, (1e4, None), held_out()[1], Config())
    assert math.isfinite(huge["valid_perplexity"])


def test_scores_of_translations_are_recorded_with_their_step(evaluator, tmp_path):
    one = evaluator(best_metric="bleu")
    one.evaluate(1, 1, (2.0, REFERENCES))
    one.evaluate("average", 1, (2.0, texts(2)))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["step"] == second["step"] == 1
    assert first["valid_bleu"] == pytest.approx(100.0) and first["valid_exact_match"] == 100.0
    assert second["average_exact_match"] == 50.0 and "valid_bleu" not in second
    assert 0.0 < second["average_bleu"] < 100.0


def test_eval_sentences_limits_the_translated_sentences(evaluator, tmp_path):
    one = evaluator(best_metric="bleu", eval_sentences=2)
    one.evaluate(1, 1, (2.0, texts(2)))
    assert one.best.entry["bleu"] == pytest.approx(100.0)


def test_samples_are_at_equal_distances_from_the_first_to_the_last():
    lines = samples([str(i) for i in range(9)], ["t"] * 9, ["r"] * 9, 3)
    assert [line.split()[1] for line in lines if line.startswith("source")] == ["0", "4", "8"]
    assert len(samples(["a"], ["b"], ["c"], 5)) == 4
