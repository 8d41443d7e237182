"""Teacher forcing gives a hypothesis the score of its search, with any options.

The model is random, so that hypotheses differ and every option has an effect.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow_except
from random_translator import ALL_RULES, LINES, OPTIONS, scored, texts_of, translator_of

from seq2seq.decoding.engine.teacher_forcing import TeacherForcing
from seq2seq.decoding.results import Item
from seq2seq.model.scoring import score_targets


@pytest.fixture(scope="module")
def translator():
    return translator_of()


def test_each_pair_is_scored_once_also_at_the_boundary_of_a_bucket(monkeypatch):
    translator, lengths = translator_of(longest=20), []
    run = translator.forcing._run

    def counted(variables, weights, source, source_lengths, *target):
        lengths.extend(np.asarray(source_lengths).ravel().tolist())
        return run(variables, weights, source, source_lengths, *target)

    monkeypatch.setattr(translator.forcing, "_run", counted)
    first = translator.engine.buckets[0]
    pairs = [(" ".join(["eins"] * (n - 1)), "zwei") for n in (first - 1, first, first + 1)]
    list(translator.score(pairs))
    assert sorted(n for n in lengths if n) == [first - 1, first, first + 1]


SCORED = {
    "defaults": {},
    "ensemble": dict(seeds=(1, 2)),
    "weights": dict(seeds=(1, 2), weights=(0.8, 0.2)),
    "renormalized": dict(seeds=(1, 2), renormalize=True),
    "suppressed": dict(suppress="<pad> <s> <unk> vier elf", alpha=1.3, power_penalty=True),
    "repetition": dict(repetition_penalty=1.6, suppress="<pad> <s> <unk> vier"),
    "all": ALL_RULES,
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(["defaults", "ensemble", "all"], SCORED))
def test_a_searched_hypothesis_has_the_score_of_its_search(name):
    options = SCORED[name]
    translator = translator_of(**options)
    translations = list(translator.stream(LINES))
    pairs = [
        (line, h.text)
        for line, translation in zip(LINES, translations, strict=True)
        for h in translation.hypotheses
    ]
    expected = [h.score for translation in translations for h in translation.hypotheses]
    results = scored(translator, pairs)
    assert sum(result is None for result in results) == 1  # the blank line
    assert len(set(expected)) > 10
    for result, score, (_, text) in zip(results, expected, pairs, strict=True):
        if result is None:
            assert (score, text) == (0.0, "")
        else:
            assert result.score == pytest.approx(score, abs=1e-4)
            assert sum(result.log_probs) == pytest.approx(result.log_prob, abs=1e-4)
            assert result.tokens == [*text.split(), "</s>"]


def test_an_ensemble_differs_from_its_models_and_one_of_equal_models_does_not():
    first, other, both, twice = (translator_of(seeds) for seeds in ((1,), (2,), (1, 2), (1, 1)))
    hypotheses = [[line.hypotheses for line in t.stream(LINES)] for t in (first, other, both)]
    assert hypotheses[2] not in hypotheses[:2]
    for single, double in zip(first.stream(LINES), twice.stream(LINES), strict=True):
        assert single.text == double.text
        assert single.hypotheses[0].score == pytest.approx(double.hypotheses[0].score, abs=1e-4)


def test_each_target_token_is_linked_to_the_source_token_of_largest_attention(translator):
    source, target = "eins zwei drei", "vier fünf sechs"
    (aligned,) = scored(translator, [(source, target)])
    ids = [jnp.array([[*translator.source_tokenizer.encode(text), 2]]) for text in (source, target)]
    models = [(translator.engine.models[0], translator.engine.variables[0])]
    length = jnp.array([4])
    attention = jax.jit(partial(score_targets, models))(ids[0], length, ids[1], length).attention
    assert attention.shape == (1, 4, 4)
    np.testing.assert_allclose(attention.sum(axis=2), 1.0, atol=1e-5)
    assert aligned.links == [(int(attention[0, j, :3].argmax()), j) for j in range(3)]
    (unaligned,) = scored(translator, [("", target)])
    assert unaligned.links == []


def test_scores_of_padding_are_0_and_padding_changes_nothing(translator):
    """Source and target, with padding of any token id."""
    models = [(translator.engine.models[0], translator.engine.variables[0])]
    source, target = jnp.array([[5, 6, 7, 2]]), jnp.array([[8, 9, 2]])
    score = jax.jit(partial(score_targets, models))
    expected = score(source, jnp.array([4]), target, jnp.array([3]))
    for filler in (0, 9):
        padded = [
            jnp.pad(x, ((0, 0), (0, n)), constant_values=filler)
            for x, n in ((source, 3), (target, 2))
        ]
        results = score(padded[0], jnp.array([4]), padded[1], jnp.array([3]))
        np.testing.assert_allclose(results.log_probs[:, :3], expected.log_probs, atol=1e-5)
        np.testing.assert_allclose(results.attention[:, :3, :4], expected.attention, atol=1e-5)
        assert not results.log_probs[:, 3:].any() and not results.attention[:, :3, 4:].any()


def test_a_score_records_how_much_of_its_pair_was_truncated(translator):
    short, long = translator.score([("eins", "zwei"), ("eins", "zwei " * 100)])
    assert (short.kept, short.tokens, short.truncated) == (2, 2, False)
    assert (long.kept, long.tokens, long.truncated) == (16, 101, True)


def test_options_reach_the_search(translator):
    """Options that restrict the translations, in one program; without them each is violated."""
    usual = [h.text for line in translator.stream(LINES) for h in line.hypotheses if h.text]
    words = [text.split() for text in usual]
    suppressed = max(word for text in words for word in text)
    assert any(len(set(text)) < len(text) for text in words)
    assert min(map(len, words)) + 1 > 7
    options = dict(no_repeat_ngram=1, min_length=7, max_length=7)
    options["suppress"] = f"{OPTIONS['suppress']} {suppressed}"
    texts = translator.translate(LINES, nbest=2, **options)
    assert texts[1] == [""] and {len(nbest) for nbest in texts if nbest != [""]} == {2}
    for text in [text.split() for nbest in texts for text in nbest if text]:
        assert suppressed not in text and len(set(text)) == len(text)
        assert len(text) + 1 == 7


def test_a_translation_begins_with_its_prefix_and_other_lines_do_not_change(translator):
    usual = texts_of(translator.stream(LINES))
    items = [
        Item(line, line, prefix="elf drei" if i in (0, 4) else "") for i, line in enumerate(LINES)
    ]
    begun = texts_of(translator.stream(items))
    for i, (text, before) in enumerate(zip(begun, usual, strict=True)):
        if i in (0, 4):
            assert text.split()[:2] == ["elf", "drei"]
        else:
            assert text == before


def test_samples_depend_on_seed_and_line_number_but_not_on_the_batch():
    options = dict(samples=4, temperature=1.5)
    samples = translator_of(batch_size=1, **options).translate(LINES)
    assert samples == translator_of(batch_size=3, **options).translate(LINES)
    assert samples[1] == [""]
    assert len(set(samples[0])) > 1
    assert samples != translator_of(seed=1, **options).translate(LINES)
    rest = [line.hypotheses for line in translator_of(**options).stream(LINES[3:], first=3)]
    assert [[h.text for h in nbest] for nbest in rest] == samples[3:]


@pytest.mark.parametrize("renormalize", [False, True])
def test_a_suppressed_piece_has_no_probability(renormalize):
    translator = translator_of(suppress="<pad> <s> <unk> vier", renormalize=renormalize)
    with_it, without = scored(translator, [("eins", "zwei vier"), ("eins", "zwei drei")])
    assert with_it.log_probs[1] == with_it.score == -np.inf
    assert np.isfinite(without.log_probs).all()


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
    for pair, other in zip(results, expected, strict=True):
        assert pair is None or pair.score == pytest.approx(other.score, abs=1e-4)
