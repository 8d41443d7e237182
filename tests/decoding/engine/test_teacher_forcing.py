"""Teacher forcing of given pairs: alignment, padding, truncation, suppressed pieces and memory.

Scores are compared in tests/decoding/test_decoding_combinations.py.
"""

from functools import partial

import jax
import numpy as np
import pytest

from seq2seq.decoding.engine.requests import padded_request
from seq2seq.decoding.engine.teacher_forcing import TeacherForcing
from seq2seq.decoding.results import Hypothesis, Source
from seq2seq.model.search.scoring import GivenPairs, score_targets
from tests.support.models.random_translator import LINES, scored, translator_of


@pytest.fixture(scope="module")
def translator():
    return translator_of()


def test_each_pair_is_scored_once_also_at_the_boundary_of_a_bucket(monkeypatch):
    translator, lengths = translator_of(longest=20), []
    run = translator.forcing._run

    def counted(variables, weights, pairs, marks):
        lengths.extend(np.asarray(pairs.lengths).ravel().tolist())
        return run(variables, weights, pairs, marks)

    monkeypatch.setattr(translator.forcing, "_run", counted)
    first = translator.engine.buckets[0]
    pairs = [(" ".join(["eins"] * (n - 1)), "zwei") for n in (first - 1, first, first + 1)]
    list(translator.score(pairs))
    assert sorted(n for n in lengths if n) == [first - 1, first, first + 1]


def test_each_target_token_is_linked_to_the_source_token_of_largest_attention(translator):
    source, target = "eins zwei drei", "vier fünf sechs"
    (aligned,) = scored(translator, [(source, target)])
    ids = [np.array([[*translator.source_tokenizer.encode(text), 2]]) for text in (source, target)]
    models = [(translator.engine.models[0], translator.engine.variables[0])]
    length, score = np.array([4]), jax.jit(partial(score_targets, models))
    attention = np.asarray(score(GivenPairs(ids[0], length, ids[1], length)).attention)
    assert attention.shape == (1, 4, 4)
    np.testing.assert_allclose(attention.sum(axis=2), 1.0, atol=1e-5)
    assert aligned.links == [(int(attention[0, j, :3].argmax()), j) for j in range(3)]
    (unaligned,) = scored(translator, [("", target)])
    assert unaligned.links == []


def test_scores_of_padding_are_0_and_padding_changes_nothing(translator):
    """Source and target, with padding of any token id."""
    models = [(translator.engine.models[0], translator.engine.variables[0])]
    source, target = np.array([[5, 6, 7, 2]]), np.array([[8, 9, 2]])
    score = jax.jit(partial(score_targets, models))
    expected = score(GivenPairs(source, np.array([4]), target, np.array([3])))
    for filler in (0, 9):
        padded = [
            np.pad(x, ((0, 0), (0, n)), constant_values=filler)
            for x, n in ((source, 3), (target, 2))
        ]
        results = jax.device_get(
            score(GivenPairs(padded[0], np.array([4]), padded[1], np.array([3])))
        )
        np.testing.assert_allclose(results.log_probs[:, :3], expected.log_probs, atol=1e-5)
        np.testing.assert_allclose(results.attention[:, :3, :4], expected.attention, atol=1e-5)
        assert not results.log_probs[:, 3:].any() and not results.attention[:, :3, 4:].any()


def test_a_score_records_how_much_of_its_pair_was_truncated(translator):
    short, long = translator.score([("eins", "zwei"), ("eins", "zwei " * 100)])
    assert (short.kept, short.tokens, short.truncated) == (2, 2, False)
    assert (long.kept, long.tokens, long.truncated) == (16, 101, True)


def test_an_annotated_end_is_free_at_a_limit_that_a_prefix_sets():
    translator = translator_of(forced_end=True, max_length_ratio=0.5)
    encode, config = translator.source_tokenizer.encode, translator.engine.models[0].config
    for prefix, limit, is_free in (("elf elf elf", 4, True), ("", 2, False)):
        source = Source(0, encode("eins zwei drei"), encode(prefix))
        request = padded_request([source], (1, 16), config, translator.decoding, 16)
        assert request.limits.tolist() == [limit]  # of a search
        hypothesis = Hypothesis("elf elf elf", -1.0, -1.0, 4, encode("elf elf elf"))
        ((annotated,),) = translator.forcing.annotated([source], [[hypothesis]])
        assert (annotated.scored.log_probs[-1] == 0.0) == is_free


@pytest.mark.parametrize("renormalize", [False, True])
def test_a_suppressed_piece_has_no_probability(renormalize):
    translator = translator_of(suppress="<pad> <s> <unk> vier", renormalize=renormalize)
    suppressed, usual = scored(translator, [("eins", "zwei vier"), ("eins", "zwei drei")])
    assert suppressed.log_probs[1] == suppressed.score == -np.inf
    assert np.isfinite(usual.log_probs).all()


def test_many_long_lines_are_scored_a_few_at_a_time(monkeypatch):
    """A batch has as many rows as in a search, and fewer if the devices run out of memory."""
    translator, rows = translator_of(), []
    batch = TeacherForcing._batch

    def watched(self, bucket, capacity, pairs):
        rows.append((bucket, capacity // jax.local_device_count()))
        if rows[-1][1] > 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return batch(self, bucket, capacity, pairs)

    expected = scored(translator_of(), zip(LINES, LINES, strict=True))
    monkeypatch.setattr(TeacherForcing, "_batch", watched)
    results = scored(translator, zip(LINES, LINES, strict=True))
    assert (rows[0][1], rows[-1][1]) == (3, 1)
    assert [pair and pair.tokens for pair in results] == [pair and pair.tokens for pair in expected]
    for pair, expected_pair in zip(results, expected, strict=True):
        assert pair is None or pair.score == pytest.approx(expected_pair.score, abs=1e-4)
