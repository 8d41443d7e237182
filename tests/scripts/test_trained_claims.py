"""The trained claims on attention and positions, each with a control that must fail.

The control is the same rule on results in which a model without the effect takes the place of the
one with it. Some rules need the full size; here only those are tested that a small one decides.
"""

import pytest
from tiny_claims import held, measured, one_compilation  # noqa: F401

from seq2seq.scripts import claims
from seq2seq.scripts.experiments import (
    causal_masking,
    longer_sequences,
    parallel_training,
    softmax_scaling,
    word_order,
)
from seq2seq.scripts.experiments.outcome import by_arm, read_outcome, rounded

pytestmark = pytest.mark.slow


def test_without_the_factor_a_wide_head_trains_worse():
    results = measured(softmax_scaling)
    assert held(softmax_scaling, results, 5) == [True]
    control = results | {"unscaled": results["scaled"]}
    assert held(softmax_scaling, control, 5) == [False]


def test_without_the_causal_mask_a_model_copies_its_input():
    results = measured(causal_masking)
    assert held(causal_masking, results) == [True, True]
    control = results | {"unmasked": results["masked"]}
    assert held(causal_masking, control) == [False, False]


def test_without_positions_only_particles_tell_who_did_what():
    results = measured(word_order)
    assert held(word_order, results) == [True, True]
    ordered, hidden, visible = word_order.ARMS
    control = results | {hidden: results[ordered], visible: results[hidden]}
    assert held(word_order, control) == [False, False]


def test_learned_positions_beyond_the_training_length_are_predicted_only_if_they_are_trained():
    module = longer_sequences
    longest = module.LONGEST["tiny"] * 3 // 2
    short = [rounded(module.measure("learned", 0, "tiny"))]
    half_longer = [rounded(module.accuracies("learned", 0, "tiny", longest))]
    assert held(module, dict.fromkeys(module.ARMS, short), 0, 3) == [True, True]
    assert held(module, dict.fromkeys(module.ARMS, half_longer), 3) == [False]
    assert half_longer[0]["beyond"][0] > short[0]["beyond"][0] + 0.1
    incorrect = [short[0] | {"inside": [0.9, 0.9]}]
    assert held(module, dict.fromkeys(module.ARMS, incorrect), 0) == [False]


@pytest.mark.parametrize("name", ["attention_cost", "parallel_training"])
def test_a_measurement_of_time_runs_and_is_drawn_and_described(name, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(parallel_training.LENGTHS, "tiny", (4,))  # compiles for each length
    claims.run_experiment(name, tmp_path, "tiny", seeds=1, overwrite=False)
    module, path = claims.load(name), tmp_path / "claims" / f"{name}.json"
    results = by_arm(read_outcome(path)["results"])
    checks, printed = module.judge(results), capsys.readouterr().out
    assert list(results) == list(module.ARMS) and path.with_suffix(".svg").exists()
    assert all(check.measured in printed for check in checks)
    for (result,) in results.values():
        costs = [result[name] for name in result if name != "lengths"]
        assert costs and all(len(cost) == len(module.LENGTHS["tiny"]) for cost in costs)
        assert min(map(min, costs)) > 0
