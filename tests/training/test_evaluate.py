"""Evaluation: the best checkpoint, and scores from sums, with a translator that is a table."""

import json
import math
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from seq2seq.config.tree import Config, TrainingConfig
from seq2seq.data.corpora.corpus import Corpus, Origin
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.metrics import bleu
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.storage.best_checkpoint import BestCheckpoint
from seq2seq.storage.run import Run
from seq2seq.training import evaluate
from seq2seq.training.evaluate import Evaluator, held_out_loss, print_results, samples
from seq2seq.training.loss import LossSums
from seq2seq.training.progress import reached_limit
from tests.support.runs import run_training, state_bytes
from tests.support.tiny import tiny_config, write_corpus

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
    corpus = Corpus(REFERENCES, REFERENCES, array("q", range(1, 5)), origins, Counts(), {})
    return corpus, Pairs(ids, ids)


@pytest.fixture
def make_evaluator(tmp_path):
    def make(**training):
        run = Run(tmp_path / "run")
        runs.append(run)
        run.open_metrics(0, {})
        config = Config(training=TrainingConfig(**training))
        return Evaluator(config, run, {"": held_out()}, eval_step, TableTranslator())

    runs = []
    yield make
    for run in runs:
        run.close()


def texts(correct):
    """Translations of which the first `correct` are correct."""
    return REFERENCES[:correct] + WRONG[correct:]


def test_the_best_checkpoint_by_bleu_has_the_highest_bleu(make_evaluator):
    evaluator = make_evaluator(best_metric="bleu")
    for step, correct in ((1, 1), (2, 3), (3, 2), (4, 3)):
        evaluator.evaluate(step, step, (1.0 * step, texts(correct)))
    assert evaluator.best.entry["checkpoint"] == 2
    assert 50.0 < evaluator.best.entry["bleu"] < 100.0
    assert evaluator.best.without_improvement == 2 and evaluator.best.evaluated_step == 4


@pytest.mark.parametrize("metric, best", [("bleu", 2), ("chrf", 1)])
def test_chrf_selects_by_characters_and_bleu_by_words(make_evaluator, metric, best):
    """The sentences of step 1 have one wrong verb each. Of those of step 2, two are correct, and
    two share no letter with their references."""
    candidates = (
        [reference.replace("sees", "saw") for reference in REFERENCES],
        REFERENCES[:2] + ["vv"] * 2,
    )
    score = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}[metric]
    scores = [score(translations, [REFERENCES]).score for translations in candidates]
    evaluator = make_evaluator(best_metric=metric)
    for step, translations in enumerate(candidates, 1):
        evaluator.evaluate(step, step, (1.0, translations))
    assert evaluator.best.entry == {"checkpoint": best, metric: max(scores), "loss": 1.0}


def test_the_best_checkpoint_by_loss_has_the_lowest_loss(make_evaluator):
    evaluator = make_evaluator(best_metric="loss")
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 1.0)):
        evaluator.evaluate(step, step, (loss, texts(step % 4)))
    assert evaluator.best.entry == {"checkpoint": 2, "loss": 1.0}


def test_of_equal_scores_the_lower_loss_is_better_and_bleu_of_0_is_a_warning(
    make_evaluator, tmp_path
):
    evaluator = make_evaluator(best_metric="bleu")
    for step, loss in enumerate((math.nan, 3.0, 2.0, math.nan, 2.5, 2.0), 1):
        evaluator.evaluate(step, step, (loss, ["vv"] * 4 if step == 1 else WRONG))
        assert evaluator.best.entry["checkpoint"] == min(step, 3)
    assert evaluator.best.entry == {"checkpoint": 3, "bleu": 0.0, "loss": pytest.approx(2.0)}
    assert evaluator.best.without_improvement == 3
    log = (tmp_path / "run" / "train.log").read_text().splitlines()
    assert [line.split(":")[0] for line in log[::2]] == ["validation of 1"] + ["warning"] * 5
    assert "chrf 0," in log[0] and "BLEU is 0 although chrF is not" in log[2]
    stored = {"best": {"checkpoint": 3, "bleu": 0.0}, "without_improvement": 3, "evaluated_step": 6}
    evaluator.best.restore({**stored, "files": {}}, {}, 0, print)
    evaluator.evaluate(7, 7, (9.0, WRONG))  # earlier versions did not store the loss
    assert evaluator.best.entry["checkpoint"] == 7


def test_evaluations_use_the_tokenizer_of_bleu_and_log_its_signature(tmp_path, capsys):
    corpus, pairs = held_out()
    chinese = ["我们昨天去了图书馆", "他昨天没有去图书馆"]
    corpus = corpus._replace(source=chinese, target=chinese)
    outputs = [text.replace("图书馆", "公园") for text in chinese]
    run = Run(tmp_path / "run")
    run.open_metrics(0, {})
    config = Config(training=TrainingConfig(bleu_tokenizer="zh"))
    evaluator = Evaluator(config, run, {"": (corpus, pairs)}, eval_step, TableTranslator())
    evaluator.evaluate(1, 1, (2.0, outputs))
    run.close()
    expected = sacrebleu.corpus_bleu(outputs, [chinese], tokenize="zh").score
    assert evaluator.best.entry["bleu"] == pytest.approx(expected) and expected > 40
    assert "|tok:zh|" in (tmp_path / "run" / "train.log").read_text()
    data = SimpleNamespace(test={"": corpus})
    results = SimpleNamespace(path=tmp_path, name="run", log=print, write_scores=print)
    print_results(results, data, evaluator._translator, evaluator.bleu)
    assert f"held-out BLEU {expected:.2f} (nrefs:1|case:mixed|eff:no|tok:zh|" in (
        capsys.readouterr().out
    )


def test_any_score_is_better_than_nan():
    best = BestCheckpoint("loss")
    checkpoints = []
    for step, loss in enumerate((math.nan, math.nan, math.inf, math.nan, 2.0, math.nan, 3.0)):
        best.update(step, loss, loss)
        checkpoints.append(best.entry["checkpoint"])
    assert checkpoints == [0, 0, 2, 2, 4, 4, 4] and best.without_improvement == 2


@pytest.mark.parametrize("patience, exhausted", [(0, False), (1, True), (2, True), (3, False)])
def test_patience_counts_consecutive_evaluations_without_improvement(
    make_evaluator, patience, exhausted
):
    evaluator = make_evaluator(best_metric="loss", patience=patience)
    for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0), (4, 1.5), (5, 1.5)):
        evaluator.evaluate(step, step, (loss, REFERENCES))
    waited = evaluator.best.without_improvement
    limit = reached_limit(TrainingConfig(patience=patience), 5, 0, 0.0, waited)
    assert limit == (f"training.patience={patience}" if exhausted else "")


def test_undo_restores_the_previous_best_if_the_best_step_was_not_saved(make_evaluator):
    evaluator = make_evaluator(best_metric="loss")
    for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0)):
        evaluator.evaluate(step, step, (loss, REFERENCES))
    evaluator.best.undo(2)
    assert evaluator.best.entry["checkpoint"] == 3
    evaluator.best.undo(3)
    assert evaluator.best.entry["checkpoint"] == 1 and evaluator.best.without_improvement == 1


def test_the_best_checkpoint_is_restored_from_json(make_evaluator):
    evaluator = make_evaluator(best_metric="loss")
    evaluator.evaluate(1, 1, (2.0, REFERENCES))
    evaluator.evaluate(2, 2, (3.0, REFERENCES))
    stored = json.loads(json.dumps(evaluator.best.to_json()))
    evaluator.best.reset()
    assert not evaluator.best.entry
    restored = BestCheckpoint("loss")
    restored.restore({**stored, "files": {}}, {}, 0, print)
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


def test_scores_of_translations_are_recorded_with_their_step(make_evaluator, tmp_path):
    evaluator = make_evaluator(best_metric="bleu")
    evaluator.evaluate(1, 1, (2.0, REFERENCES))
    evaluator.evaluate("average", 1, (2.0, texts(2)))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["step"] == second["step"] == 1
    assert first["valid_bleu"] == pytest.approx(100.0) and first["valid_exact_match"] == 100.0
    assert second["average_exact_match"] == 50.0 and "valid_bleu" not in second
    assert 0.0 < second["average_bleu"] < 100.0


class SecondSetWrong:
    """A TableTranslator for two sets of sentences; all translations of the second one are wrong."""

    def use(self, params):
        self.texts = iter([params[1], WRONG] * 2)

    def stream(self, items, first):
        return [SimpleNamespace(text=text) for text in next(self.texts)]


def test_each_named_set_is_recorded_and_the_first_one_decides(tmp_path):
    run = Run(tmp_path / "run")
    run.open_metrics(0, {})
    sets = {"news": held_out(), "web": held_out()}
    evaluator = Evaluator(Config(), run, sets, eval_step, SecondSetWrong())
    evaluator.evaluate(1, 1, (2.0, texts(2)))
    evaluator.evaluate("average", 1, (2.0, REFERENCES))
    run.close()
    assert evaluator.best.entry == {
        "checkpoint": "average",
        "bleu": pytest.approx(100.0),
        "loss": 2.0,
    }
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["news/valid_exact_match"], first["web/valid_exact_match"]) == (50.0, 0.0)
    assert (second["news/average_exact_match"], second["web/average_exact_match"]) == (100.0, 0.0)
    assert first["web/valid_loss"] == second["web/average_loss"] == pytest.approx(2.0)
    assert not any(name.startswith("valid") for name in first)
    log = (tmp_path / "run" / "train.log").read_text().splitlines()
    assert [line.split(":")[0] for line in log] == [
        f"validation of {checkpoint} on {name}"
        for checkpoint in (1, "average")
        for name in ("news", "web")
    ]
    samples = {path.name: path.read_text() for path in (tmp_path / "run" / "samples").iterdir()}
    assert sorted(samples) == ["1-news.txt", "1-web.txt", "average-news.txt", "average-web.txt"]
    assert f"model     {REFERENCES[3]}" in samples["average-news.txt"]
    assert (
        "model     no" in samples["1-web.txt"] and "model     no" not in samples["average-news.txt"]
    )


def test_eval_sentences_limits_the_translated_sentences(make_evaluator, tmp_path):
    evaluator = make_evaluator(best_metric="bleu", eval_sentences=2)
    evaluator.evaluate(1, 1, (2.0, texts(2)))
    assert evaluator.best.entry["bleu"] == pytest.approx(100.0)


def test_samples_are_at_equal_distances_from_the_first_to_the_last():
    lines = samples([str(i) for i in range(9)], ["t"] * 9, ["r"] * 9, 3)
    assert [line.split()[1] for line in lines if line.startswith("source")] == ["0", "4", "8"]
    assert len(samples(["a"], ["b"], ["c"], 5)) == 4


def test_the_results_of_each_set_have_its_name(tmp_path, capsys, monkeypatch):
    corpus, _ = held_out()
    translator, written = SecondSetWrong(), []
    run = SimpleNamespace(
        path=tmp_path, name="run", log=lambda line: None, write_scores=written.append
    )
    translator.use((0.0, REFERENCES))
    with monkeypatch.context() as patch:  # the scores are written before they are printed
        patch.setattr(evaluate, "write_stored", written.append)
        print_results(run, SimpleNamespace(test={"": corpus}), translator, bleu)
    assert list(map(type, written)) == [dict, str]
    written.clear()
    translator.use((0.0, REFERENCES))
    print_results(run, SimpleNamespace(test={"news": corpus, "": corpus}), translator, bleu)
    printed = capsys.readouterr().out.splitlines()
    assert printed.count("model     no") == printed.count(f"model     {REFERENCES[0]}") * 4 == 4
    assert printed[0] == "news:" and printed.count("news:") == 1
    titles = [line.split(" = ")[0].split(" (")[0] for line in printed if "held-out" in line]
    assert [title for title in titles if "news" in title] == [
        "held-out news BLEU 100.00",
        "held-out news lower-cased tokenised BLEU 100.00",
        "held-out news chrF2 100.00",
        "held-out news exact match 100.0 % of 4 sentences",
    ]
    assert titles[-1] == "held-out exact match 0.0 % of 4 sentences" and len(titles) == 8
    (scores,) = written
    assert scores["checkpoint"] == "latest" and list(scores["sets"]) == ["news", ""]
    for name, value in (("news", 100.0), ("", 0.0)):
        assert scores["sets"][name]["sentences"] == 4
        assert scores["sets"][name]["scores"][-1]["value"] == value
    first = scores["sets"]["news"]["scores"][0]
    assert (
        first["name"] == "BLEU" and f"held-out news BLEU 100.00 ({first['signature']})" in printed
    )


@pytest.mark.slow
def test_a_list_of_sets_has_the_results_of_its_sets_alone(tmp_path):
    """Trained with two sets, and with either alone: the first one decides as if it were alone."""
    corpus, *sets = (
        write_corpus(tmp_path / f"{pairs}.tsv", pairs, seed=pairs) for pairs in (132, 9, 13)
    )
    runs = [tmp_path / name for name in ("both", "a", "b")]
    for path, valid in zip(runs, [f"a={sets[0]}; b={sets[1]}", *sets], strict=True):
        config = tiny_config(corpus, valid)
        config.training.num_steps = config.training.eval_every = 2
        run_training(path, config)
    both, *alone = (
        dict(
            item
            for line in (path / "metrics.jsonl").read_text().splitlines()
            for item in json.loads(line).items()
            if item[0] not in ("step", "time") and not item[0].startswith("train_")
        )
        for path in runs
    )
    named = {f"{name}/{key}": score for name, results in zip("ab", alone, strict=True)
             for key, score in results.items()}  # fmt: skip
    assert both == named and len(named) == 2 * 2 * 7
    (arrays, data), (arrays_of_first, data_of_first) = map(state_bytes, runs[:2])
    assert arrays == arrays_of_first and data["best"] == data_of_first["best"] != {}
    assert (runs[0] / "best.json").read_bytes() == (runs[1] / "best.json").read_bytes()
