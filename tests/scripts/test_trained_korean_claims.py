"""The trained claims on models of the built-in corpus, each with a control that must fail.

The control is the same rule on results in which a model without the effect takes the place of the
one with it. Some rules need the full size; here only those are tested that a small one decides.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seq2seq.decoding.engine.teacher_forcing import scoring_program
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.scoring import GivenPairs
from seq2seq.scripts.experiments import heads, korean_model, word_alignment, word_vectors
from seq2seq.scripts.experiments.korean_model import korean_task, trained_korean
from seq2seq.scripts.experiments.small_model import forced_pass, padded, token_accuracy, train_model
from tests.scripts.tiny_claims import held, measured, one_compilation, short_corpus  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def shorter_training(monkeypatch):
    monkeypatch.setitem(korean_model.STEPS, "tiny", 300)
    monkeypatch.setattr(korean_model, "train_model", partial(train_model, rows=32))


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


def test_the_agreement_of_the_mode_align_is_computed_from_its_links():
    """The source token of each target token, computed by the program of decode.py."""
    known, trained = korean_task("tiny"), trained_korean("tiny", 0)
    pairs, links = word_alignment.new_sentences(known, 16, 0)
    sides = zip(known.encoded(pairs), (known.task.source_length, known.task.target_length),
                strict=True)  # fmt: skip
    inputs = [jnp.asarray(x) for side, length in sides for x in padded(side, length)]
    run = scoring_program((trained.model,), SearchOptions(0, trained.model.config.end_id))
    devices = jax.local_device_count()
    arrays = [x.reshape(devices, -1, *x.shape[1:]) for x in inputs]
    attended = np.asarray(run((trained.variables,), None, GivenPairs(*arrays), None)[1])
    attended = attended.reshape(len(pairs), -1)
    agreements = [
        attended[row][j] == i for row, pair_links in enumerate(links) for i, j in pair_links
    ]
    weights = word_alignment.run_score(trained.model, trained.variables, *inputs)
    assert word_alignment.agreement(weights, inputs[1], links) == np.mean(agreements)


def test_removing_no_head_changes_nothing_and_removing_one_raises_the_loss():
    known, trained = korean_task("tiny"), trained_korean("tiny", 0)
    pairs = known.encoded(known.test[:32])
    losses = heads.ablated_losses(trained, known.task, pairs)
    assert len(losses) == 1 + len(heads.KINDS) * 2 * trained.model.config.num_heads
    assert max(losses[1:]) > losses[0] + 0.01
    logits, attention = forced_pass(trained, known.task, *pairs)
    labels = [np.array([*target, 2]) for target in pairs[1]]
    token_losses = [
        optax.softmax_cross_entropy_with_integer_labels(row[: len(target)], target)
        for row, target in zip(logits, labels, strict=True)
    ]
    assert np.isclose(losses[0], np.concatenate(token_losses).mean(), rtol=1e-4)
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
