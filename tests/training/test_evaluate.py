"""Evaluation: which checkpoint is the best, and scores from sums, with a model that is a table."""

import json
import math
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from data.pairs import Pairs, ragged
from data.text_files import Corpus, Origin
from storage.config import Config, TrainingConfig
from storage.run import Run
from training.evaluate import Evaluator, held_out_loss, samples
from training.loss import LossSums

REFERENCES = [f"the {word} sees the small dog" for word in ("cat", "man", "bird", "king")]
WRONG = ["no"] * 4


class Copies:
    """A translator whose parameters are (loss, texts)."""

    def use(self, params):
        self.texts = params[1]

    def stream(self, items, first):
        return [SimpleNamespace(text=text) for text in self.texts[first : first + len(items)]]


def eval_step(params, rows):
    """Sums for `params` = (loss a token, texts); the unsmoothed loss is half of it."""
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
        run.go_on_from(0)
        config = Config(training=TrainingConfig(**training))
        return Evaluator(config, run, held_out(), eval_step, Copies())

    runs = []
    yield make
    for run in runs:
        run.close()


def texts(right):
    """As many right translations."""
    return REFERENCES[:right] + WRONG[right:]


def test_the_best_checkpoint_by_bleu_has_the_highest_bleu(evaluator):
    one = evaluator(best_metric="bleu")
    for step, right in ((1, 1), (2, 3), (3, 2), (4, 3)):
        one.judge(step, step, (1.0 / step, texts(right)))
    assert one.best["checkpoint"] == 2
    assert 50.0 < one.best["bleu"] < 100.0
    assert one.without_better == 2 and one.judged == 4


def test_the_best_checkpoint_by_loss_has_the_lowest_loss(evaluator):
    one = evaluator(best_metric="loss")
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 1.0)):
        one.judge(step, step, (loss, texts(step % 4)))
    assert one.best == {"checkpoint": 2, "loss": 1.0}


@pytest.mark.parametrize("patience, exhausted", [(0, False), (1, True), (2, True), (3, False)])
def test_patience_counts_evaluations_in_a_row_without_a_better_one(evaluator, patience, exhausted):
    one = evaluator(best_metric="loss", patience=patience)
    for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0), (4, 1.5), (5, 1.5)):
        one.judge(step, step, (loss, REFERENCES))
    assert one.exhausted == exhausted


def test_an_unsaved_step_is_not_the_best_and_a_saved_one_stays(evaluator):
    one = evaluator(best_metric="loss")
    for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0)):
        one.judge(step, step, (loss, REFERENCES))
    one.take_back(2)
    assert one.best["checkpoint"] == 3
    one.take_back(3)
    assert one.best["checkpoint"] == 1 and one.without_better == 1


def test_an_evaluation_s_memory_is_recalled_by_another(evaluator):
    one = evaluator(best_metric="loss")
    one.judge(1, 1, (2.0, REFERENCES))
    one.judge(2, 2, (3.0, REFERENCES))
    memory = json.loads(json.dumps(one.memory))
    one.forget()
    assert not one.best
    one.recall(memory)
    assert (one.best["checkpoint"], one.without_better, one.judged) == (1, 1, 2)


def test_perplexity_is_that_of_the_unsmoothed_loss():
    metrics = held_out_loss(eval_step, (3.0, None), held_out()[1], Config())
    assert metrics["valid_loss"] == pytest.approx(3.0)
    assert metrics["valid_nll"] == pytest.approx(1.5)
    assert metrics["valid_perplexity"] == pytest.approx(math.exp(1.5))
    assert metrics["valid_accuracy"] == pytest.approx(0.25)
    huge = held_out_loss(eval_step, (1e4, None), held_out()[1], Config())
    assert math.isfinite(huge["valid_perplexity"])


def test_scores_are_of_the_texts_and_are_recorded_beside_their_step(evaluator, tmp_path):
    one = evaluator(best_metric="bleu")
    one.judge(1, 1, (2.0, REFERENCES))
    one.judge("average", 1, (2.0, texts(2)))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["step"] == second["step"] == 1
    assert first["valid_bleu"] == pytest.approx(100.0) and first["valid_exact_match"] == 100.0
    assert second["average_exact_match"] == 50.0 and "valid_bleu" not in second
    assert 0.0 < second["average_bleu"] < 100.0


def test_only_as_many_sentences_are_translated_as_asked_for(evaluator, tmp_path):
    one = evaluator(best_metric="bleu", eval_sentences=2)
    one.judge(1, 1, (2.0, texts(2)))
    assert one.best["bleu"] == pytest.approx(100.0)


def test_samples_are_spread_over_the_list_from_the_first_to_the_last():
    lines = samples([str(i) for i in range(9)], ["t"] * 9, ["r"] * 9, 3)
    assert [line.split()[1] for line in lines if line.startswith("source")] == ["0", "4", "8"]
    assert len(samples(["a"], ["b"], ["c"], 5)) == 4
