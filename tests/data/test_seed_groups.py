"""Groups of runs: spread, and a paired test that for one run each is that of sacreBLEU."""

import random
import statistics

import numpy as np
import pytest

from seq2seq.data.metrics import METRICS, ROUGE, Metric
from seq2seq.data.seed_groups import compare_groups
from seq2seq.runtime.errors import CONFIGURATION, UserError

WORDS = [f"word{i}" for i in range(40)]
CHOOSE = random.Random(0)
REFERENCES = [" ".join(CHOOSE.choices(WORDS, k=CHOOSE.randint(5, 12))) for _ in range(60)]


def outputs(share: float, seed: int) -> list[str]:
    """The references with this share of other words."""
    choose = random.Random(seed)
    return [
        " ".join(choose.choice(WORDS) if choose.random() < share else word for word in line.split())
        for line in REFERENCES
    ]


@pytest.mark.parametrize("name, seed", [("bleu", "7"), ("chrf", None), ("ter", None)])
def test_the_test_of_one_run_each_is_that_of_sacrebleu(name, seed, monkeypatch):
    if seed:
        monkeypatch.setenv("SACREBLEU_SEED", seed)
    texts, baseline = outputs(0.27, 1), outputs(0.3, 2)
    references = [REFERENCES, outputs(0.6, 3)] if name == "chrf" else [REFERENCES]
    expected = METRICS[name].compare(texts, baseline, *references)
    result = compare_groups(METRICS[name], [texts], [baseline], *references)
    assert result.p_value == pytest.approx(expected.p_value, abs=1e-9) != 1 / 1001
    assert result.outputs.mean == pytest.approx(expected.output.value)
    assert result.baseline is not None
    assert result.baseline.mean == pytest.approx(expected.baseline.value)
    assert np.isnan(result.outputs.deviation)
    assert str(result.outputs) == f"{result.outputs.mean:.2f}"


def test_a_seed_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7.5")
    with pytest.raises(UserError, match="SACREBLEU_SEED is invalid: .* got '7.5'") as refused:
        compare_groups(METRICS["bleu"], [outputs(0.2, 1)], [outputs(0.2, 2)], REFERENCES)
    assert refused.value.code == CONFIGURATION


@pytest.mark.parametrize("metric", [METRICS["bleu"], ROUGE["rouge"][2]], ids=["bleu", "rougeL"])
def test_a_group_has_the_mean_and_sample_deviation_of_its_runs(metric: Metric):
    if metric is ROUGE["rouge"][2]:
        pytest.importorskip("rouge_score")
    runs = [outputs(0.2, seed) for seed in range(3)]
    values = [metric(texts, REFERENCES).value for texts in runs]
    score = compare_groups(metric, runs, [], REFERENCES).outputs
    assert score.values == values
    assert score.mean == pytest.approx(statistics.mean(values))
    assert score.deviation == pytest.approx(statistics.stdev(values)) and score.deviation > 0
    shown = ", ".join(f"{value:.2f}" for value in values)
    assert str(score) == f"{score.mean:.2f} ± {score.deviation:.2f} ({shown})"


def test_the_score_of_a_group_in_a_resample_is_the_mean_of_its_runs():
    """A score of ROUGE is a mean over lines, so a group has that of the means of each line."""
    pytest.importorskip("rouge_score")
    metric, lines = ROUGE["rouge"][2], np.arange(len(REFERENCES))
    groups = [[outputs(share, seed) for seed in (0, 1, 2)] for share in (0.25, 0.27)]
    means = [
        np.mean([metric.resampled(lines[:, None], run, REFERENCES) for run in group], axis=0)
        for group in groups
    ]  # of each line
    drawn = np.random.default_rng(12345).choice(len(lines), (1000, len(lines)))
    resamples = np.abs((means[0] - means[1])[drawn].mean(axis=1))
    larger = resamples - resamples.mean() > abs(means[0].mean() - means[1].mean())
    expected = (larger.sum() + 1) / 1001
    assert compare_groups(metric, *groups, REFERENCES).p_value == pytest.approx(expected, abs=0.002)
    assert 0.002 < expected < 0.9
