"""Searches over logits that are NaN or infinite end at their limits, and their scores are NaN.

Axes: B sentences · N beams · V vocabulary · T steps.
"""

from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import Queue, beam_search
from seq2seq.model.search.sampling import sample
from seq2seq.model.search.translate import ensemble
from tests.support.models.table_models import (
    END,
    LIMIT,
    START,
    B,
    V,
    bigram_step,
    random_limits,
    random_tables,
)

NEGATIVE_NAN = np.array(0xFFC00000, np.uint32).view(np.float32)  # top_k sorts NaN by its sign
BAD = {"nan": np.nan, "negative nan": NEGATIVE_NAN, "inf": np.inf}
KINDS = {
    "beam 4": dict(beam_size=4, nbest=2),
    "beam 1, queue, ensemble, rules": dict(
        beam_size=1, rows=3, models=2,
        rules=dict(repetition_penalty=1.3, suppress=(5,), renormalize=True),
    ),
}  # fmt: skip


STEPS: list[int] = []  # the largest t of each step


@cache
def searcher(kind):
    """A compiled search over bigram tables, which appends to STEPS."""
    options = KINDS[kind]
    rows, models, beams = options.get("rows", B), options.get("models", 1), options["beam_size"]

    @jax.jit
    def search(tables, limits, alpha):
        def step(tokens, state, t, parents, ancestry):
            sentences, states = state
            jax.debug.callback(lambda t: STEPS.append(int(t.max())), t)
            table_step = bigram_step(tables[sentences])
            logits, states = ensemble([table_step] * models)(tokens, states, t, parents, ancestry)
            return logits, (sentences, states)

        def load(state, lanes, sentences):
            return state[0].at[lanes].set(sentences), *state[1:]

        return beam_search(
            step,
            (jnp.arange(rows) * 0, (None,) * models),
            Targets(jnp.full(B, START), limits),
            SearchOptions(
                LIMIT,
                END,
                beam_size=beams,
                nbest=options.get("nbest", 1),
                alpha=alpha,
                **options.get("rules", {}),
            ),
            Queue(rows, load),
        )

    return lambda tables, limits, alpha=0.6: jax.device_get(search(tables, limits, alpha))


def with_bad_sentences(value, where):
    """Tables, and which of them (every third) hold `value`: in every entry, for one next token, or
    only after the most probable first token."""
    tables, bad = random_tables(0), np.arange(B) % 3 == 0
    for row in np.flatnonzero(bad):
        if where == "everywhere":
            tables[row] = value
        elif where == "one token":
            tables[row, :, 7] = value
        else:
            tables[row, START, [END, 5]] = -30.0  # 5 is suppressed by the rules
            first = tables[row, START].argmax()
            tables[row, first, 4] = value
    return tables, bad


@pytest.mark.parametrize("where", ["everywhere", "one token", "later"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_with_nonfinite_logits_is_nan_and_changes_no_other(kind, where):
    limits = np.full(B, LIMIT)
    for value in BAD.values():
        tables, bad = with_bad_sentences(value, where)
        hypotheses = searcher(kind)(tables, limits)
        usual = searcher(kind)(np.where(bad[:, None, None], random_tables(1), tables), limits)
        assert np.isnan(hypotheses.scores[bad]).all() and np.isnan(hypotheses.log_probs[bad]).all()
        assert (hypotheses.lengths[bad] == 0).all()
        for array, usual_array in zip(hypotheses, usual, strict=True):
            assert array[~bad].tobytes() == usual_array[~bad].tobytes()


def test_logits_of_a_hypothesis_that_is_not_live_may_be_nan():
    """The first token is 4, so the second beam has no hypothesis. After 4, END or 4 follow, with
    the logits 0 and 1."""
    tables = np.full((B, V, V), np.nan, np.float32)
    tables[:, START], tables[:, 4] = -np.inf, -np.inf
    tables[:, START, 4], tables[:, 4, END], tables[:, 4, 4] = 0.0, 0.0, 1.0
    hypotheses = searcher("beam 4")(tables, np.full(B, 4), 0.0)
    np.testing.assert_allclose(hypotheses.log_probs[:, 0], -np.log(1 + np.e), rtol=1e-5)


def test_no_row_makes_more_steps_than_its_limit_for_any_values():
    """Also if the penalty overflows: −inf / inf is NaN, which compares as false."""
    random = np.random.default_rng(0)
    values = np.array([0.0, -np.inf, np.inf, np.nan, -3.4e38, 3.4e38], np.float32)
    for alpha in (0.6, 200.0, np.inf, np.nan):
        tables = np.where(
            random.random((B, V, V)) < 0.02,
            random.choice(values, (B, V, V)),
            random_tables(3, end=-5.0),
        )
        limits = random_limits(3)
        jax.effects_barrier()
        STEPS.clear()
        hypotheses = searcher("beam 4")(tables, limits, alpha)
        jax.effects_barrier()
        assert len(STEPS) <= limits.max() and max(STEPS) == len(STEPS) - 1
        assert (hypotheses.lengths <= limits[:, None]).all()


def test_no_hypothesis_is_lost_if_the_penalty_overflows():
    limits = random_limits(1)
    hypotheses = searcher("beam 4")(random_tables(1, end=-2.0), limits, 1e30)
    alone = hypotheses.lengths == 1  # ((5 + 1) / 6)^alpha is 1
    assert (hypotheses.lengths[:, 0] > 0).all() and alone.any() and not alone.all()
    np.testing.assert_array_equal(
        hypotheses.scores,
        np.where(alone, hypotheses.log_probs, np.where(hypotheses.lengths, -0.0, -np.inf)),
    )


@pytest.mark.parametrize("options", [{}, dict(top_k=3, top_p=0.7)], ids=str)
def test_samples_end_at_their_limits_for_any_values(options):
    limits = random_limits(2)

    @jax.jit
    def draw(tables):
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.PRNGKey(3)))(jnp.arange(B))
        return sample(
            bigram_step(tables),
            None,
            Targets(jnp.full(B, START), jnp.asarray(limits)),
            keys,
            SearchOptions(LIMIT, END, samples=3, **options),
        )

    for value, where in product(BAD.values(), ("everywhere", "one token")):
        tables, bad = with_bad_sentences(value, where)
        samples = jax.device_get(draw(tables))
        assert np.isnan(samples.scores[bad]).all() and np.isfinite(samples.scores[~bad]).all()
        assert ((samples.lengths > 0) & (samples.lengths <= limits[:, None])).all()
        after = np.arange(LIMIT) >= samples.lengths[..., None] - 1
        assert ((samples.tokens == END) == after).all()
