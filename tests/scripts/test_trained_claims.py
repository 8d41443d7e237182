"""The trained claims at a small size, each with a control that must fail.

The control is the same rule on results in which a model without the effect takes the place of the
one with it. Some rules need the full size; here only those are tested that a small one decides.
"""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seq2seq.decoding.engine.teacher_forcing import scoring_program
from seq2seq.model.constraints import RuleOptions
from seq2seq.model.transformer import Transformer
from seq2seq.scripts import claims
from seq2seq.scripts.experiments import (
    attention_heads,
    beam_sizes,
    causal_masking,
    context_vector,
    feed_forward_layers,
    heads,
    korean_model,
    longer_sequences,
    residual_connections,
    softmax_scaling,
    teacher_forcing,
    word_alignment,
    word_order,
    word_vectors,
)
from seq2seq.scripts.experiments.korean_model import (
    korean_task,
    trained_korean,
)
from seq2seq.scripts.experiments.outcome import by_arm, read_outcome, rounded
from seq2seq.scripts.experiments.small_model import (
    Trained,
    batch_of,
    best_hypotheses,
    forced_pass,
    padded,
    small_config,
    token_accuracy,
)
from seq2seq.training.parameters import init_params

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def optimised_programs():
    """Compile with optimisations, unlike other tests: here training takes longer than compiling."""
    name = "jax_disable_most_optimizations"
    disabled = jax.config.values[name]
    jax.config.update(name, False)
    yield
    jax.config.update(name, disabled)


def measured(module, *arms):
    """One result of each arm, of size tiny; as they are stored."""
    return {arm: [rounded(module.measure(arm, 0, "tiny"))] for arm in arms or module.ARMS}


def held(module, results, *numbers):
    """Whether the checks of these numbers hold (default: all)."""
    checks = module.judge(results)
    return [checks[i].holds for i in numbers or range(len(checks))]


def test_without_the_factor_a_wide_head_trains_worse_and_one_of_width_1_does_not():
    module = softmax_scaling
    results = measured(module)
    assert held(module, results, 5) == [True]
    control = {
        arm: module.training_losses(arm, 0, "tiny", heads=128)[-10:].mean() for arm in results
    }
    assert control["scaled"] < 0.9 * np.log(16)  # it has learned
    control = {arm: [results[arm][0] | {"loss": control[arm]}] for arm in results}
    assert held(module, control, 5) == [False]


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


@pytest.mark.parametrize(("arm", "check"), [("rotary", 2), ("learned", 3)])
def test_positions_beyond_the_training_length_are_predicted_better_if_they_are_trained(arm, check):
    module = longer_sequences
    short = [rounded(module.measure(arm, 0, "tiny"))]
    half_longer = [rounded(module.accuracies(arm, 0, "tiny", module.LONGEST["tiny"] * 3 // 2))]
    assert held(module, dict.fromkeys(module.ARMS, short), 0, check) == [True, arm == "learned"]
    assert half_longer[0]["beyond"][0] > short[0]["beyond"][0] + 0.1
    if arm == "learned":
        assert held(module, dict.fromkeys(module.ARMS, half_longer), check) == [False]


def test_a_model_without_positions_does_not_copy_sequences_of_the_training_length():
    results = dict.fromkeys(longer_sequences.ARMS, measured(longer_sequences, "none")["none"])
    assert held(longer_sequences, results, 0) == [False]


def test_one_context_vector_loses_longer_sequences_and_attention_does_not():
    module = context_vector
    results = measured(module)
    assert held(module, results) == [True] * 4
    control = results | {"rnn": results["rnn_attention"]}
    assert held(module, control) == [True, False, True, True]
    control = results | {"rnn": results["transformer"]}
    assert held(module, control) == [True, False, True, True]
    control = dict.fromkeys(module.ARMS, results["rnn"])
    assert held(module, control) == [True, True, False, False]


@pytest.mark.parametrize("name", ["attention_cost", "parallel_training"])
def test_a_measurement_of_time_runs_and_is_drawn_and_described(name, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    claims.run_experiment(name, tmp_path, "tiny", seeds=1, overwrite=False)
    module, path = claims.load(name), tmp_path / "claims" / f"{name}.json"
    results = by_arm(read_outcome(path)["results"])
    checks, printed = module.judge(results), capsys.readouterr().out
    assert list(results) == list(module.ARMS) and path.with_suffix(".svg").exists()
    assert all(check.measured in printed for check in checks)
    for (result,) in results.values():
        costs = [result[one] for one in result if one != "lengths"]
        assert costs and all(len(one) == len(module.LENGTHS["tiny"]) for one in costs)
        assert min(map(min, costs)) > 0


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


def test_one_layer_computes_the_exclusive_or_only_with_feed_forward_layers():
    module = feed_forward_layers
    results = measured(module)
    assert held(module, results, 2, 3) == [True, True]
    everything, without, *_ = module.ARMS
    control = results | {everything: results[without], without: results[everything]}
    assert held(module, control, 2, 3) == [False, False]
    assert held(module, results | {everything: results[without]}, 2) == [False]  # below 0.9


def test_gradients_leave_their_range_without_norms():
    module = residual_connections
    each = {arm: module.gradient_norms(arm, 0) for arm in ("post", "no norms")}
    results = {
        arm: [{"gradients": each.get(arm, each["post"]), "warmup": 1.0, "no_warmup": 1.0}]
        for arm in module.ARMS
    }
    assert held(module, results, 0, 2) == [True, True]
    control = results | {"post": results["no norms"], "no norms": results["post"]}
    assert held(module, control, 0, 2) == [False, False]


def test_a_model_without_residual_connections_and_norms_learns_less(monkeypatch):
    module = residual_connections
    monkeypatch.setitem(module.STEPS, "tiny", 120)
    results = measured(module, "post", "neither")
    post, neither = results["post"][0], results["neither"][0]
    assert post["warmup"] < neither["warmup"] - 0.3
    assert set(neither) == {"gradients", "warmup", "warmup_losses"}
    assert post["warmup_losses"] != post["no_warmup_losses"]


def test_several_heads_differ_and_one_head_does_not(monkeypatch):
    monkeypatch.setitem(korean_model.STEPS, "tiny", 200)  # of models that no other test uses
    module = attention_heads
    results = measured(module)
    assert np.shape(results["8 heads"][0]["costs"]) == (3, 2, 8)
    assert held(module, results, 1) == [True]
    assert held(module, dict.fromkeys(module.ARMS, results["1 head"])) == [False] * 5
    if find_spec("matplotlib"):
        module.draw(results)


def test_a_larger_beam_finds_more_probable_outputs_and_takes_longer():
    module = beam_sizes
    first, last = measured(module, "beam 1"), measured(module, "beam 32")
    results = dict.fromkeys(module.ARMS, last["beam 32"]) | first
    assert held(module, results, 0, 4) == [True, True]
    control = dict.fromkeys(module.ARMS, results["beam 1"])
    assert held(module, control, 0, 1, 2, 4) == [False] * 4
    if find_spec("matplotlib"):
        module.draw(results)


def test_teacher_forcing_converges_faster_than_own_tokens_and_has_a_gap():
    module = teacher_forcing
    results = measured(module)
    assert held(module, results, 0, 1) == [True, True]
    forced, own = module.ARMS
    assert held(module, {forced: results[own], own: results[forced]}, 0, 1) == [False, False]


def test_own_tokens_are_the_greedy_output_shifted_by_one():
    task = teacher_forcing.running_sums(range(4, 9))
    model = Transformer(small_config(task))
    trained = Trained(model, init_params(model, jax.random.key(0)), np.zeros(0))
    sources, targets = task.sample(np.random.default_rng(0), 8)
    output = teacher_forcing.greedy_output(model, task.target_length)
    batch = teacher_forcing.own_tokens(output)(trained.params, batch_of(task, sources, targets))
    found, _ = best_hypotheses(trained, task, sources)
    for row, hypothesis, target in zip(batch.target, found, targets, strict=True):
        length = min(len(hypothesis), len(target))
        assert row[0] == 1 and row[1 : length + 1].tolist() == hypothesis[:length]
        assert not row[len(target) + 1 :].any()


def test_vectors_of_a_word_differ_between_contexts_only_with_attention():
    results = measured(word_vectors)
    assert held(word_vectors, results) == [True] * 4
    trained, without = word_vectors.ARMS
    assert held(word_vectors, {trained: results[without], without: results[without]}) == [False] * 4


def test_a_trained_head_aligns_words_and_an_untrained_one_does_not():
    results = measured(word_alignment)
    trained, untrained = (results[arm][0]["best"] for arm in word_alignment.ARMS)
    assert trained > 0.5 and untrained < 0.4  # the rule of the full size is stricter
    control = {"trained": results["untrained"], "untrained": results["untrained"]}
    assert held(word_alignment, control) == [False, False]


def test_the_agreement_of_the_mode_align_is_that_of_its_links():
    """The source token of each target token, computed by the program of decode.py."""
    known, trained = korean_task("tiny"), trained_korean("tiny", 0)
    pairs, links = word_alignment.new_sentences(known, 16, 0)
    sides = zip(known.encoded(pairs), (known.task.source_length, known.task.target_length),
                strict=True)  # fmt: skip
    inputs = [jnp.asarray(x) for side, length in sides for x in padded(side, length)]
    run = scoring_program((trained.model,), RuleOptions())
    devices = jax.local_device_count()
    arrays = [x.reshape(devices, -1, *x.shape[1:]) for x in inputs]
    attended = np.asarray(run((trained.variables,), None, *arrays)[1])
    attended = attended.reshape(len(pairs), -1)
    found = [attended[row][j] == i for row, each in enumerate(links) for i, j in each]
    weights = word_alignment.run_score(trained.model, trained.variables, *inputs)
    assert word_alignment.agreement(weights, inputs[1], links) == np.mean(found)


def test_removing_no_head_changes_nothing_and_removing_one_raises_the_loss():
    known, trained = korean_task("tiny"), trained_korean("tiny", 0)
    pairs = known.encoded(known.test[:32])
    losses = heads.ablated_losses(trained, known.task, pairs)
    assert len(losses) == 1 + len(heads.KINDS) * 2 * trained.model.config.num_heads
    assert max(losses[1:]) > losses[0] + 0.01
    logits, attention = forced_pass(trained, known.task, *pairs)
    labels = [np.array([*target, 2]) for target in pairs[1]]
    each = [
        optax.softmax_cross_entropy_with_integer_labels(row[: len(target)], target)
        for row, target in zip(logits, labels, strict=True)
    ]
    assert np.isclose(losses[0], np.concatenate(each).mean(), rtol=1e-4)
    correct = [
        row[: len(t) - 1].argmax(-1) == t[:-1] for row, t in zip(logits, labels, strict=True)
    ]
    accuracy = token_accuracy(trained, known.task, *pairs)
    assert np.isclose(accuracy, np.concatenate(correct).mean())
    entropies = heads.head_statistics(trained, known.task, pairs)["entropy"]
    first = attention.encoder[0][:, 1]  # [B, T, S]
    rows = [weights[: len(s) + 1, : len(s) + 1] for weights, s in zip(first, pairs[0], strict=True)]
    expected = np.concatenate([-(w * np.log(np.maximum(w, 1e-30))).sum(-1) for w in rows]).mean()
    assert np.isclose(entropies[0, 0, 1], expected, rtol=1e-4)
