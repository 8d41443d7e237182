"""The trained claims on attention and positions, each with a control that must fail.

The control is the same rule on results in which a model without the effect takes the place of the
one with it. Some rules need the full size; here only those are tested that a small one decides.
"""

import pytest

from seq2seq.scripts import claims
from seq2seq.scripts.experiments import parallel_training
from seq2seq.scripts.experiments.outcome import by_arm, read_outcome
from tests.scripts.tiny_claims import held, measured, one_compilation  # noqa: F401

pytestmark = pytest.mark.slow


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
