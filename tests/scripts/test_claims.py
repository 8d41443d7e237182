"""The experiments on claims: analytic ones with a control that must fail, results, and the page."""

import json
import re
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from seq2seq.data.korean.english import english
from seq2seq.data.korean.grammar import Clause, Phrase, Sentence, korean
from seq2seq.data.korean.lexicon import PRONOUNS
from seq2seq.data.korean.predicates import UNRESTRICTED
from seq2seq.data.korean.speaker import NOUN
from seq2seq.model.config import num_parameters
from seq2seq.model.positions import sinusoidal_positions
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.scripts import claims
from seq2seq.scripts.experiments import (
    attention_cost,
    attention_heads,
    beam_sizes,
    causal_masking,
    context_vector,
    longer_sequences,
    mask_before_softmax,
    parallel_training,
    relative_positions,
    residual_connections,
    softmax_scaling,
    source_digest,
    teacher_forcing,
    word_order,
)
from seq2seq.scripts.experiments.equal_models import equal_config
from seq2seq.scripts.experiments.grammar_alignment import aligned_words
from seq2seq.scripts.experiments.korean_model import evenly_spaced
from seq2seq.scripts.experiments.outcome import Check, Outcome, rounded, spread, values, verdict
from seq2seq.scripts.experiments.softmax_derivative import entropy, query_norms, softmax_derivative
from seq2seq.scripts.experiments.source_digest import PACKAGE
from seq2seq.scripts.experiments.tasks import copying, excluding, reversal
from seq2seq.scripts.experiments.timing import crossing, growth, median_seconds
from seq2seq.scripts.experiments.vectors import cosine_distance, found_share, projection
from tests.support.in_process import call_in_process

ROOT = Path(__file__).parents[2]
EXPERIMENTS = [pytest.param(name, id=name) for name in claims.NUMBERS]


def held(checks):
    return [check.holds for check in checks]


def test_without_the_factor_the_softmax_saturates_but_not_the_mean_derivative_by_the_query(
    monkeypatch,
):
    monkeypatch.setattr(softmax_scaling, "WIDTHS", (1, 256, 4096))
    monkeypatch.setattr(softmax_scaling, "ROWS", 4)
    compiled = jax.jit(softmax_scaling.dot_product_attention)
    monkeypatch.setattr(softmax_scaling, "dot_product_attention", compiled)
    measured = {arm: softmax_scaling.score_statistics(arm, 0) for arm in softmax_scaling.ARMS}
    results = {arm: [measured[arm] | {"loss": 1.0}] for arm in measured}
    assert held(softmax_scaling.judge(results)) == [True, True, True, True, False, False]
    text = softmax_scaling.judge(results)[1].measured
    entropies = measured["unscaled"]["entropy"]
    first = softmax_scaling.WIDTHS[min(i for i, share in enumerate(entropies) if share < 0.1)]
    assert f"below 0.10 from d_k = {first})" in text
    control = {"scaled": results["scaled"], "unscaled": results["scaled"]}
    assert held(softmax_scaling.judge(control)) == [False] * 6
    assert "(never below 0.10)" in softmax_scaling.judge(control)[1].measured
    vanished = [
        measured["unscaled"] | {"loss": 1.2, "query_mean": measured["unscaled"]["query_median"]}
    ]
    assert held(softmax_scaling.judge(results | {"unscaled": vanished})) == [True] * 6


def test_the_derivatives_of_the_softmax_are_those_of_automatic_differentiation():
    random = np.random.default_rng(0)
    queries, keys = random.normal(0, 2, (5, 3)), random.normal(0, 1, (7, 3))

    @jax.jit
    def run(queries):
        by_scores = jax.vmap(jax.jacobian(jax.nn.softmax))(queries @ keys.T)
        by_query = jax.vmap(jax.jacobian(lambda q: jax.nn.softmax(q @ keys.T)))(queries)
        return jax.nn.softmax(queries @ keys.T), by_scores, by_query

    weights, expected, by_query = jax.device_get(run(queries))
    derivatives = softmax_derivative(weights)
    assert np.allclose(derivatives, expected, atol=1e-6)
    norms = query_norms(derivatives[None, None], keys[None, None])[0, 0]
    assert np.allclose(norms, np.linalg.norm(by_query, axis=(1, 2)), rtol=1e-4)
    uniform = np.full((1, 8), 1 / 8)
    assert np.allclose(entropy(uniform), np.log(8))
    assert np.allclose(entropy(np.eye(8)), 0.0)


def test_the_derivatives_of_a_saturated_softmax_are_not_rounded_to_zero():
    """Two keys at the distance 5, weights 1 − ε and ε: the norm by the query is √2 · 5 ε."""
    weights = np.array([1.0, 1e-20], np.float32)
    keys = np.array([[100.0, 0], [103, 4]])
    derivatives = softmax_derivative(weights)
    assert np.allclose(derivatives, 1e-20 * np.array([[1, -1], [-1, 1]]), rtol=1e-5, atol=0)
    norm = query_norms(derivatives[None, None, None], keys[None, None])[0, 0, 0]
    assert np.isclose(norm, 2**0.5 * 5 * 1e-20, rtol=1e-5, atol=0)


def test_weights_that_are_zeroed_after_the_softmax_are_not_normalised(monkeypatch):
    module = mask_before_softmax
    # Faster than operation by operation.
    monkeypatch.setattr(module, "attend", jax.jit(module.attend, static_argnums=0))
    results = {arm: [module.measure(arm, 0, "tiny")] for arm in module.ARMS}
    assert held(module.judge(results)) == [True] * 4
    before, after, divided = module.ARMS
    control = {before: results[before], after: results[before], divided: results[after]}
    assert held(module.judge(control)) == [False] * 4


def test_rotary_scores_depend_on_the_distance_and_sinusoids_shift_linearly(monkeypatch):
    module = relative_positions
    monkeypatch.setattr(module, "rotate", jax.jit(module.rotate))
    results = {arm: [module.measure(arm, 0, "tiny")] for arm in module.ARMS}
    assert held(module.judge(results))[:2] == [True, True]
    sinusoidal = results["sinusoidal"][0]
    control = {"rotary": [sinusoidal], "sinusoidal": [sinusoidal | {"error": 1.0}]}
    assert held(module.judge(control))[:2] == [False, False]


def test_a_shift_map_is_that_of_its_shift_only():
    table = sinusoidal_positions(60, 16).astype(np.float64)
    shifted = table[:40] @ relative_positions.shift_map(20, 16).T
    assert np.abs(shifted - table[20:]).max() < 1e-6
    assert np.abs(table[:40] @ relative_positions.shift_map(19, 16).T - table[20:]).max() > 0.5


def test_inner_products_of_sinusoids_rise_where_the_claim_says_they_fall():
    measured = relative_positions.measure("sinusoidal", 1, "tiny")
    table = sinusoidal_positions(200, relative_positions.D_MODEL).astype(np.float64)
    products = table @ table[0]
    rise = measured["first_rise"]
    assert products[rise] > products[rise - 1] and (np.diff(products[:rise]) < 0).all()


def test_inner_products_are_judged_by_their_first_rise():
    module = relative_positions
    falling = np.linspace(1, 0, module.FARTHEST)
    assert module.first_rise(falling) == module.FARTHEST
    assert module.first_rise(np.array([3, 2, 2, 1, 4])) == 4
    results = {arm: [module.measure(arm, 0, "tiny")] for arm in module.ARMS}
    for rise, holds in ((None, True), (129, True), (128, False), (1, False)):
        products = falling.copy()
        if rise:
            products[rise] = products[rise - 1] + 1e-9
        changed = results["sinusoidal"][0] | {"first_rise": module.first_rise(products)}
        check = module.judge(results | {"sinusoidal": [changed]})[2]
        assert check.holds == holds and ("never" in check.measured) == (rise is None)


def test_a_task_without_sequences_never_samples_them_and_keeps_its_rule():
    task = reversal(symbols=2, lengths=range(2, 4))  # 12 sequences
    left_out = task.sample(np.random.default_rng(1), 5)[0]
    sources, targets = excluding(task, left_out).sample(np.random.default_rng(0), 300)
    seen, kept = set(map(tuple, sources)), set(map(tuple, left_out))
    assert len(sources) == 300 and len(seen) == 12 - len(kept) and not seen & kept
    assert targets == [source[::-1] for source in sources]


def test_accuracies_beyond_the_training_length_are_judged_without_those_inside():
    def result(inside, beyond):
        return [
            {"factors": [1, 2], "inside": [inside] * 2, "beyond": [beyond], "sequences": [1, 0]}
        ]

    results = dict.fromkeys(longer_sequences.ARMS, result(1.0, 0.95))
    results |= {"learned": result(1.0, 0.1)}
    assert held(longer_sequences.judge(results)) == [True] * 6
    control = dict.fromkeys(longer_sequences.ARMS, result(0.94, 0.2))
    assert held(longer_sequences.judge(control)) == [False] * 6
    for place, arm in enumerate(("sinusoidal", "rotary", "relative", "alibi"), 1):
        checks = held(longer_sequences.judge(results | {arm: result(1.0, 0.85)}))
        assert checks == [i != place for i in range(6)]
    assert "no positions in cross-attention" in longer_sequences.judge(results)[2].measured


def test_scores_of_decoding_ignore_end_tokens_and_padding_but_the_likelihood_counts_end_tokens():
    labels, lengths = np.array([[5, 6, 2, 0], [7, 2, 0, 0]]), np.array([3, 2])
    logits = np.zeros((2, 4, 8))
    logits[0, :2, 5] = 1.0  # correct, wrong
    logits[1, :, 7] = 1.0  # correct
    scores = teacher_forcing.scores(np.array([[5, 5, 2, 0], [4, 4, 0, 0]]), logits, labels, lengths)
    assert np.isclose(scores["decoded"], 1 / 3) and np.isclose(scores["forced"], 2 / 3)
    total = np.log(7 + np.e)  # nats of a token whose logit is 0, where another is 1
    assert np.isclose(scores["nll"], (4 * total + np.log(8) - 2) / 5, rtol=1e-5)


def test_the_causal_mask_is_judged_by_the_loss_and_the_outputs():
    def result(loss, decoded):
        return [{"loss": loss, "decoded": decoded}]

    first, second = causal_masking.ARMS
    results = {first: result(0.6, 0.95), second: result(0.04, 0.05)}
    assert held(causal_masking.judge(results)) == [True, True]
    for arm, other in ((first, result(0.04, 0.95)), (second, result(0.6, 0.05))):
        assert held(causal_masking.judge(results | {arm: other})) == [False, True]
    for arm, other in ((first, result(0.6, 0.8)), (second, result(0.04, 0.2))):
        assert held(causal_masking.judge(results | {arm: other})) == [True, False]


def test_word_order_is_judged_by_positions_and_by_particles():
    def judged(*correct):
        arms = zip(word_order.ARMS, correct, strict=True)
        return held(
            word_order.judge({arm: [{"correct": x, "examples": {"a": "b"}}] for arm, x in arms})
        )

    assert judged(0.95, 0.5, 0.95) == [True, True]
    assert judged(0.85, 0.5, 0.95) == judged(0.95, 0.7, 0.95) == [False, True]
    assert judged(0.95, 0.5, 0.85) == [True, False]


def test_teacher_forcing_is_judged_by_greedy_decoding_and_the_gap_of_errors():
    def result(decoded, forced, nll=0.0):
        return [{"steps": [1, 2], "decoded": decoded, "forced": forced, "nll": [nll] * 2}]

    first, second = teacher_forcing.ARMS
    slow = {second: result([0.3, 0.5], [0.3, 0.5], nll=0.5)}
    judged = [
        held(teacher_forcing.judge({first: result(*shares)} | slow))
        for shares in (
            ([0.4, 0.8], [0.6, 0.9]),
            ([0.4, 1.0], [0.6, 1.0]),  # no errors at the end
            ([0.4, 1.0], [0.4, 1.0]),
            ([0.3, 0.4], [0.9, 0.9]),
        )
    ]
    assert judged == [[True] * 3, [True, True, False], [True, False, False], [False, True, True]]


def test_generated_targets_follow_their_rule():
    random = np.random.default_rng(0)
    for task, rule in ((reversal(), lambda x: x[::-1]), (copying(5, range(2, 4)), list)):
        sources, targets = task.sample(random, 20)
        assert targets == list(map(rule, sources))
        assert max(map(len, sources)) < task.source_length
        assert {token for source in sources for token in source} <= set(range(4, task.vocab_size))


def test_the_grammar_aligns_words_with_their_translations():
    eat = next(verb for verb in UNRESTRICTED if verb.ko == "먹다")
    arguments = ("topic", Phrase(PRONOUNS[0])), ("object", Phrase(NOUN["사과"]))
    sentence = Sentence(Clause(eat, arguments))
    source, target, links = aligned_words(sentence)
    assert (source, target) == ("나는 사과를 먹었다 .", "I ate the apple .")
    assert links == {(0, 0), (1, 3), (2, 1)}
    assert source.replace(" .", ".") == korean(sentence)
    assert target.replace(" .", ".") == english(sentence)


def test_models_of_all_kinds_have_equal_numbers_of_parameters():
    task, width = copying(context_vector.SYMBOLS, range(2, 5)), context_vector.WIDTH
    configs = [equal_config(kind, task, width) for kind in context_vector.ARMS]
    for kind, config in zip(context_vector.ARMS, configs, strict=True):
        config.validate()
        assert config.kind == kind and config.num_layers == configs[0].num_layers
        expected = num_parameters(configs[0])
        assert abs(num_parameters(config) - expected) <= 0.05 * expected


def test_the_context_vector_is_judged_by_equal_models_that_predict_short_sequences():
    def judged(short, rnn, others, parameters=100):
        results = {
            arm: [{"lengths": [2, 8], "tokens": [short, others], "parameters": 100}]
            for arm in context_vector.ARMS
        }
        results["rnn"] = [{"lengths": [2, 8], "tokens": [short, rnn], "parameters": parameters}]
        return held(context_vector.judge(results))

    assert judged(0.99, 0.5, 0.97) == [True] * 4
    assert judged(0.99, 0.9, 0.97) == [True, False, True, True]
    assert judged(0.99, 0.5, 0.9) == [True, True, False, False]
    assert judged(0.8, 0.5, 0.8) == judged(0.99, 0.5, 0.97, parameters=110) == [False] * 4


def test_growth_and_crossing_are_those_of_power_laws():
    lengths = np.array([10.0, 40, 160, 640])
    square, line = lengths**2, 100 * lengths
    assert np.isclose(growth(lengths, 7 * square), 2) and np.isclose(growth(lengths, line), 1)
    assert np.isclose(growth([5.0, *lengths[1:]], [9e9, *square[1:]]), 2)  # of the last three
    assert np.isclose(crossing(lengths, square, line), 100)
    assert crossing(lengths, line, square) is None  # it exceeds at first only
    assert crossing(lengths, square, 10 * line) is None  # beyond the last length
    assert crossing(lengths, line, line / 2) == 10  # it exceeds at all measured lengths
    assert crossing(lengths, line, line) is None  # equal costs do not exceed
    noisy = square.copy()
    noisy[0] = 9e9  # a slow first call
    assert np.isclose(crossing(lengths, noisy, line), 100)
    noisy[:3] = line[:3] * [0.5, 2, 0.5]  # two crossings
    assert 160 < crossing(lengths, noisy, line) < 640


def test_a_median_time_ignores_the_first_call_and_one_slow_call(monkeypatch):
    clock, costs = [0.0], iter([50.0, 1.0, 90.0, 3.0])  # seconds of each call

    def call():
        clock[0] += next(costs)

    monkeypatch.setattr("seq2seq.scripts.experiments.timing.time.perf_counter", lambda: clock[0])
    assert median_seconds(call, 3) == 3.0


def test_costs_are_judged_by_their_growth_and_where_they_cross():
    lengths = np.array([16.0, 64, 256, 1024])

    def cost(seconds, memory):
        return [{"lengths": lengths, "seconds": seconds, "memory": memory}]

    square, line = lengths**2, 200 * lengths
    results = {"attention": cost(square, square), "gru": cost(line, line)}
    assert held(attention_cost.judge(results)) == [True] * 5
    control = {"attention": results["gru"], "gru": results["gru"]}
    assert held(attention_cost.judge(control)) == [False] * 5
    control = {"attention": results["attention"], "gru": results["attention"]}
    assert held(attention_cost.judge(control)) == [False] * 5
    never = {"attention": cost(square, square), "gru": cost(10 * line, line)}
    assert held(attention_cost.judge(never)) == [True, True, True, False, True]
    places = ("from n = 200 on", results), ("at no measured length", never)
    for words, costs in (*places, ("already at n = 16", {**control, "gru": cost(line / 99, line)})):
        assert words in attention_cost.judge(costs)[3].measured


def test_the_passes_of_a_layer_are_those_of_all_its_positions():
    """Each output depends on the first input; a GRU's only on inputs that are not later."""
    for arm, layer, later in (
        ("attention", attention_cost.attention_layer, True),
        ("gru", attention_cost.gru_layer, False),
    ):
        x = np.random.default_rng(0).standard_normal((1, 4, attention_cost.WIDTH), np.float32)
        first, last = x + np.eye(4)[0][:, None], x + np.eye(4)[3][:, None]

        @jax.jit
        def run(key, *inputs, layer=layer, arm=arm):
            params = attention_cost.random_params(arm, key)
            return [layer(params, x) for x in inputs]

        plain, first, last = jax.device_get(run(jax.random.key(0), x, first, last))
        assert (np.abs(first - plain).max(axis=-1) > 1e-6).all()
        assert (np.abs(last - plain)[:, :3].max(axis=-1) > 1e-6).all() == later


def test_rates_are_judged_by_what_remains_at_the_longest_length():
    def rates(*numbers):
        return [{"lengths": [16, 64], "rates": numbers}]

    results = {"transformer": rates(1000, 800), "rnn": rates(800, 100)}
    assert held(parallel_training.judge(results)) == [True] * 3
    faster_at_first = results | {"rnn": rates(1600, 100)}
    assert held(parallel_training.judge(faster_at_first)) == [True] * 3
    control = {"transformer": results["rnn"], "rnn": results["transformer"]}
    assert held(parallel_training.judge(control)) == [False] * 3
    control = {"transformer": results["rnn"], "rnn": results["rnn"]}
    assert held(parallel_training.judge(control)) == [True, False, False]


def test_distances_and_nearest_means_are_those_of_simple_vectors():
    assert np.isclose(cosine_distance(np.eye(3)), 1.0)
    assert np.isclose(cosine_distance(np.array([[1.0, 1.0], [2.0, 2.0]])), 0.0)
    points = np.array([[0.0, 0], [9, 9], [0, 1], [9, 8]])
    assert found_share(points, np.array([0, 1, 0, 1])) == 1.0
    assert found_share(points, np.array([0, 0, 1, 1])) == 0.0
    assert found_share(np.ones((4, 2)), np.array([0, 1, 0, 1])) == 0.5  # chance
    line = np.outer(np.arange(5.0), [3, 4])
    assert np.allclose(np.abs(projection(line)[:, 0]), np.abs(np.arange(5) - 2) * 5)


def test_a_verdict_and_a_spread_summarise_checks_and_seeds():
    yes, no = Check("", True), Check("", False)
    assert [verdict(c) for c in ([yes, yes], [yes, no], [no])] == ["yes", "in part", "no"]
    numbers = [1.0, 2.0, 4.0]
    assert spread(numbers, 3) == f"{np.mean(numbers):.3f} ± {np.std(numbers, ddof=1):.3f}"
    assert spread([0.5]) == "0.50"


def test_stored_results_are_read_again_for_the_same_size_only(tmp_path):
    path = tmp_path / "claims" / "one.json"
    outcome = Outcome(path, "tiny", "abc")
    outcome.add("first", 0, {"x": np.float32(1 / 3), "y": np.arange(2), "z": [True]}, 1.5)
    again = Outcome(path, "tiny", "abc")
    assert again.has("first", 0) and not again.has("first", 1) and not again.has("other", 0)
    assert again.results == {"first": [{"x": 0.333333, "y": [0, 1], "z": [True]}]}
    assert not Outcome(path, "full", "abc").has("first", 0)
    assert not Outcome(path, "tiny", "other code").has("first", 0)
    path.write_text(json.dumps({"size": "tiny", "seconds": 1, "results": {"first": {"0": {}}}}))
    assert not Outcome(path, "tiny", "abc").has("first", 0)  # measured by unknown code
    path.write_text("{}")
    with pytest.raises(UserError, match="is damaged") as error:
        Outcome(path, "tiny", "abc")
    assert error.value.code == DATA


def test_numbers_that_are_not_finite_are_valid_json_and_read_as_nan(tmp_path):
    outcome = Outcome(tmp_path / "one.json", "tiny", "abc")
    outcome.add("first", 0, {"loss": np.float32(np.nan), "norms": [np.inf, 1.0]}, 1.0)
    refuse = pytest.fail  # of NaN and Infinity, which are no JSON
    json.loads((tmp_path / "one.json").read_text(), parse_constant=refuse)
    assert outcome.results["first"] == [{"loss": None, "norms": [None, 1.0]}]
    assert np.isnan(values(outcome.results, "first", "loss")).all()
    assert spread([np.nan, 1.0]) == "nan ± nan"


def test_a_diverged_training_has_not_learned_its_task():
    module = residual_connections

    def run(warmup, no_warmup, gradients=(1.0,) * 8):
        return [rounded({"gradients": gradients, "warmup": warmup, "no_warmup": no_warmup})]

    results = {"post": run(0.1, np.nan), "pre": run(0.1, 0.1)}
    results |= dict.fromkeys(module.ARMS[2:], run(np.nan, np.nan, (np.inf,) * 8))
    assert held(module.judge(results)) == [True] * 7
    results |= {"post": run(np.nan, 0.1, (np.nan,) * 8), "pre": run(0.1, np.nan)}
    assert held(module.judge(results)) == [False, True, True, True, True, False, False]


def test_heads_are_compared_within_their_layer():
    def run(costs, sizes):
        after = {name: np.multiply(sizes, ones) for name, ones in STATISTICS.items()}
        before = {name: np.multiply([-0.1, 0, 0, 0.1], ones) for name, ones in STATISTICS.items()}
        return {"bleu": sum(sizes), "loss": 1, "costs": costs, "heads": after, "before": before}

    STATISTICS = {name: np.ones((3, 2, 1)) for name in ("entropy", "offset", "diagonality")}
    few, layers = np.full((3, 2, 4), 0.1), np.full((3, 2, 4), 0.1)
    few[:, :, 1] = 1.0  # one head of each layer
    layers[0] = 9.0  # one kind of attention, all heads alike
    single = [run(layers[:, :, :1], [0.0])]

    def judged(costs, sizes):
        return held(attention_heads.judge({"1 head": single, "8 heads": [run(costs, sizes)]}))

    assert judged(few, [0, 1, 0, 1]) == [True] * 5
    assert judged(layers, [0, 1, 0, 1]) == [True] * 4 + [False]
    assert judged(few, [1.0, 1.1, 1.0, 1.1]) == [True] + [False] * 3 + [True]
    assert held(attention_heads.judge({"1 head": single, "8 heads": single})) == [False] * 5


def test_beams_are_judged_by_scores_lengths_and_time():
    def beam(probable, bleu, longer, seconds):
        numbers = {"log_prob": [probable] * 3, "bleu": [bleu] * 3, "length": [5, 5, 5 + longer]}
        return [numbers | {"seconds": seconds}]

    results = dict.fromkeys(beam_sizes.ARMS, beam(-1.0, 80, 1, 4.0))
    results |= {"beam 1": beam(-2.0, 70, 1, 1.0)}
    assert held(beam_sizes.judge(results)) == [True] * 5
    control = dict.fromkeys(beam_sizes.ARMS, beam(-1.0, 80, 0, 4.0))
    assert held(beam_sizes.judge(control)) == [False] * 5
    assert held(beam_sizes.judge(results | {"beam 32": beam(-1.0, 81, 1, 4.0)}))[2] is False


def test_a_subset_of_the_test_pairs_covers_the_whole_list():
    pairs = [(str(i), "") for i in range(1000)]
    chosen = [int(source) for source, _ in evenly_spaced(pairs, 256)]
    assert (chosen[0], chosen[-1], len(set(chosen))) == (0, 999, 256)
    assert set(np.diff(chosen)) == {3, 4} and sum(i < 500 for i in chosen) == 128
    assert evenly_spaced(pairs[:3], 5) == pairs[:3]


def test_a_digest_changes_with_measuring_code_only(monkeypatch):
    sources = {
        "one": f'"""Claim"""\nfrom {PACKAGE}two import x\ndef judge():\n    return 1\nA = 1\n',
        "two": f'"""Two"""\nfrom {PACKAGE}figures import curve\nimport jax\nx = 2\n',
    }
    monkeypatch.setattr(source_digest, "read", lambda name: sources[name])

    def digest(name="one", old="", new=""):
        kept = sources[name]
        assert old in kept
        sources[name] = kept.replace(old, new) if old else kept
        result, sources[name] = source_digest.source_digest("one"), kept
        return result

    assert digest() == digest("one", "Claim", "Other") == digest("one", "return 1", "return 2")
    assert digest() == digest("two", "Two", "Other")
    assert digest() == digest("two", "import jax\n", "\nfrom flax import linen\n")
    assert len({digest(), digest("one", "A = 1", "A = 2"), digest("two", "x = 2", "x = 3")}) == 3


def test_incomplete_results_count_as_not_measured(tmp_path):
    outcome = Outcome(tmp_path / "claims" / "relative_positions.json", "tiny", "abc")
    arms = relative_positions.ARMS
    for arm, seed, complete in ((arms[0], 0, False), (arms[1], 0, True), (arms[0], 1, False)):
        outcome.add(arm, seed, relative_positions.measure(arm, seed, "tiny"), 1.0)
        page = claims.claims_page({6: relative_positions}, tmp_path)
        assert ("not measured yet" in page) is not complete


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_states_its_claim_and_its_rule(name):
    module = claims.load(name)
    assert re.search(r"Claim: .*\(.*\d{4}.*\).*Measurement: .*Rule, in each seed", module.__doc__,
                     re.DOTALL)  # fmt: skip
    assert module.CLAIM.endswith(".") and len(set(module.ARMS)) == len(module.ARMS) > 1
    path = ROOT / "scripts" / "experiments" / f"{name}.py"
    assert path.read_text(encoding="utf-8").count("\n") <= 165


def test_the_document_is_that_of_the_stored_results():
    expected = claims.claims_page(claims.numbered(), ROOT / "docs")
    assert (ROOT / "docs" / "CLAIMS.md").read_text(encoding="utf-8") == expected
    rows = re.findall(r"^\| \d+ \| (.*\.) \| (.*\d.*) \| (?:yes|no|in part) \|$", expected, re.M)
    assert len(rows) == len(claims.NUMBERS)
    assert all(len(cell) <= 90 for row in rows for cell in row)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stored_results_are_complete_and_have_a_small_figure(name):
    path = ROOT / "docs" / "claims" / f"{name}.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["size"] == "full" and list(stored["results"]) == list(claims.load(name).ARMS)
    assert all(len(seeds) >= 3 for seeds in stored["results"].values())
    assert 0 < path.with_suffix(".svg").stat().st_size <= 100_000


@pytest.fixture
def call(monkeypatch):
    """Calls claims.py in this process, whose allocator stays as it is."""
    monkeypatch.setattr(claims, "keep_freed_memory", lambda: None)
    return partial(call_in_process, claims)


def test_a_tiny_run_does_not_replace_the_documented_results(call):
    assert claims.DOCS == ROOT / "docs"
    done = call("word_order", "--size=tiny")
    assert done.code == 2 and "--output=DIRECTORY" in done.err[-1]
    assert len([line for line in done.err if "size" in line]) == 1


def test_an_unknown_claim_is_one_line_that_lists_the_claims(call):
    done = call("softmax")
    assert done.code == 2 and "softmax_scaling" in done.err[-1] and "'softmax'" in done.err[-1]
