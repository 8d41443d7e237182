"""Translate: the search over a Transformer equals a slow search that teacher-forces every prefix.

Axes: B sentences · S source · T target · D model width · H heads · V vocabulary · N beams.
"""

from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from seq2seq.model.config import ModelConfig
from seq2seq.model.search import translate as module
from seq2seq.model.search.arguments import Prefix, SearchOptions
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.translate import Request, translate
from seq2seq.model.transformer import Transformer
from seq2seq.training.parameters import parameter_shapes
from tests.support.marks import slow_except
from tests.support.models.random_parameters import random_params
from tests.support.oracles.slow_beam_search import listed, penalty, rescored, slow_beam_search

pytestmark = pytest.mark.usefixtures("short_cache_blocks")

B, S, T, V = 5, 7, 11, 17
PAD, START, END = 0, 1, 2
SEARCH = dict(beam_size=3, alpha=0.6, nbest=2)
LENGTHS, LIMITS = np.array([7, 3, 5, 1, 6]), np.array([11, 7, 2, 5, 11])


@cache
def tiny_model(dtype="float32", **options):
    """One layer. Its rows fill whole vector registers: XLA on a CPU rounds others by place."""
    sizes = dict(d_model=32, num_heads=2, d_ff=64, num_layers=1, max_length=23)
    sizes |= dict(source_vocab_size=V, target_vocab_size=V, tied_embeddings="none")
    return Transformer(ModelConfig(**(sizes | options), dtype=dtype))


@cache
def random_variables(model, seed=0):
    """Large parameters, so that hypotheses differ."""
    params = random_params(model.config, seed, deviation=0.3, mean_scale=1.0)
    return {"params": jax.device_put(params)}


def search_once(model, lanes, variables, source, lengths, limits):
    request = Request(source, lengths, limits)
    return translate([(model, variables)], request, SearchOptions(T, END, **SEARCH), lanes)


@cache
def compiled_search(model, lanes):
    return jax.jit(partial(search_once, model, lanes))


def translator(model, lanes=B):
    """The compiled search; its results are fetched to the host."""
    search = compiled_search(model, lanes)
    return lambda *arrays, seed=0: jax.device_get(search(random_variables(model, seed), *arrays))


def random_source(seed=0, lengths=LENGTHS, width=S):
    """Rows of random ids that end with the end token; padding after it."""
    random = np.random.default_rng(seed)
    source = np.full((len(lengths), width), PAD)
    for row, length in zip(source, lengths, strict=True):
        row[:length] = [*random.integers(4, V, max(length - 1, 0)), END][:length]
    return source


@cache
def forced_log_probs(model):
    def log_probs(variables, source, length, target):
        segments = (jnp.arange(source.shape[1]) < length).astype(int)[None]
        logits = model.apply(variables, source, target, segments, jnp.ones_like(target))
        return jax.nn.log_softmax(logits, axis=-1)

    return jax.jit(log_probs)


def forced_model(model, seed, sentence, length):
    """A sentence's log-probabilities as a function of a prefix: teacher forcing without a cache."""
    variables = random_variables(model, seed)

    @cache
    def log_probs(prefix):
        target = np.full((1, T), PAD)
        target[0, : len(prefix) + 1] = START, *prefix
        log_probs_of_target = forced_log_probs(model)(variables, sentence[None], length, target)
        return np.asarray(log_probs_of_target)[0, len(prefix)]

    return log_probs


def assert_same_bits(result, expected):
    for x, y in zip(result, expected, strict=True):
        assert x.tobytes() == y.tobytes()


def test_max_length_is_at_most_that_of_every_model():
    models = [(tiny_model(max_length=length), None) for length in (23, 19)]
    request = Request(*map(jnp.asarray, (random_source(), LENGTHS, LIMITS)))
    for wrong in (0, 20):
        with pytest.raises(ValueError, match=f"from 1 to the models' max_length, 19; got {wrong}"):
            translate(models, request, SearchOptions(wrong, END, **SEARCH), B)


def test_wrong_requests_are_refused_by_the_name_of_the_argument():
    """JAX would repeat the last row of a prefix that is too short."""
    models = [(tiny_model(), None)]
    request = Request(*map(jnp.asarray, (random_source(), LENGTHS, LIMITS)))
    tokens, numbers = jnp.zeros((B, 2), int), jnp.ones(B, int)
    prefix = lambda *arrays: dict(prefix=Prefix(*arrays))  # noqa: E731
    for error, message, change, lanes in (
        (ValueError, "prefix.tokens must have the shape", prefix(tokens[1:], numbers), B),
        (TypeError, "prefix.tokens must be integer", prefix(tokens * 1.0, numbers), B),
        (ValueError, "prefix.lengths must have the shape", prefix(tokens, numbers[1:]), B),
        (ValueError, "prefix.free must have", prefix(tokens, numbers, numbers[1:]), B),
        (ValueError, "source must not be empty", dict(source=request.source[:, :0]), B),
        (ValueError, "source must not be empty", {k: x[:0] for k, x in request._asdict().items()
                                                 if x is not None}, B),
        (ValueError, "lanes must be at least 1; got 0", {}, 0),
        (TypeError, "request.numbers must be integer", dict(numbers=numbers * 1.0), B),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            translate(models, request._replace(**change), SearchOptions(19, END), lanes)


def test_every_option_reaches_the_search(monkeypatch):
    """Also those that seldom change a result, and the largest length."""
    options = dict(beam_size=5, nbest=3, alpha=0.3, power_penalty=True)
    reached = {}

    class Searched(Exception):
        pass

    def recorded(step, state, targets, options, queue):
        reached.update(options._asdict())
        raise Searched

    monkeypatch.setattr(module, "beam_search", recorded)
    models = [(tiny_model(max_length=length), None) for length in (23, 19)]
    request = Request(*map(jnp.asarray, (random_source(), LENGTHS, LIMITS)))
    for stopping in (dict(horizon=7, stop="exact"), dict(horizon=0, stop="full")):
        search = SearchOptions(19, END, **options, **stopping)
        with pytest.raises(Searched):
            jax.eval_shape(lambda search=search: translate(models, request, search, B))
        assert reached.items() >= (options | stopping | dict(max_length=19)).items()


def test_the_keys_of_samples_are_made_of_the_seed_and_the_numbers_of_the_lines(monkeypatch):
    monkeypatch.setattr(module, "sample", lambda *arguments: Hypotheses(*[arguments[3]] * 4))
    model, numbers = tiny_model(), jnp.arange(B) + 40
    request = Request(*map(jnp.asarray, (random_source(), LENGTHS, LIMITS)), numbers=numbers)

    @jax.jit
    def keys_of(variables, seed):
        options = SearchOptions(T, END, samples=2, seed=seed)
        return translate([(model, variables)], request, options, B)

    for seed in (5, 2**31 - 1):
        key = jax.random.PRNGKey(seed)
        expected = [jax.random.fold_in(key, number) for number in numbers]
        np.testing.assert_array_equal(keys_of(random_variables(model), seed).tokens, expected)


# Results.


# The model of the other tests, and others.
KINDS = {
    "usual": {},
    "rotary": dict(norm="pre", positions="rotary", d_model=26, num_heads=13, d_ff=37),
    "relative": dict(norm="pre", positions="relative", num_layers=2),
}


@pytest.mark.parametrize(
    "kind, dtype",
    slow_except(
        [("usual", "float32"), ("rotary", "mixed")],
        [("relative", "float32"), *product(("usual", "rotary"), ("float32", "mixed", "bfloat16"))],
    ),
)
def test_translations_equal_those_of_the_slow_search_with_teacher_forcing(kind, dtype, monkeypatch):
    """This includes n-best, the limit of each sentence, and scores, which equal those of teacher
    forcing in the same precision."""
    if kind == "rotary":  # a cache of one block is compiled faster
        monkeypatch.setattr("seq2seq.model.cache.MIN_STEPS", T)
    model, source = tiny_model(**KINDS[kind], dtype=dtype), random_source()
    for seed in range(3):
        hypotheses = translator(model)(source, LENGTHS, LIMITS, seed=seed)
        for row in range(B):
            forced = forced_model(model, seed, source[row], LENGTHS[row])
            expected = slow_beam_search(forced, LIMITS[row], end_id=END, **SEARCH)
            assert [h[0] for h in listed(hypotheses, row)] == [h.tokens for h in expected]
            for (tokens, log_prob, score), h in zip(listed(hypotheses, row), expected, strict=True):
                assert log_prob == pytest.approx(rescored(forced, tokens), rel=1e-5, abs=1e-5)
                again = log_prob / penalty(len(tokens), SEARCH["alpha"])
                assert score == pytest.approx(again, rel=1e-5)
                assert score == pytest.approx(h.score, rel=1e-5, abs=1e-5)
        assert (hypotheses.lengths > 0).all() and (hypotheses.lengths <= LIMITS[:, None]).all()
        ended = np.arange(T) >= hypotheses.lengths[..., None] - 1
        assert ((hypotheses.tokens == END) == ended).all()


# Independence.


def test_results_do_not_depend_on_neighbours_in_any_bit():
    search, source = translator(tiny_model()), random_source()
    usual = search(source, LENGTHS, LIMITS)
    for row in range(B):
        other_sources, lengths, limits = (
            random_source(row, LENGTHS[::-1]),
            LENGTHS[::-1],
            LIMITS[::-1],
        )
        only = np.arange(B) == row
        again = search(
            np.where(only[:, None], source, other_sources),
            np.where(only, LENGTHS, lengths),
            np.where(only, LIMITS, limits),
        )
        assert_same_bits([x[row] for x in usual], [x[row] for x in again])


def test_results_do_not_depend_on_the_place_in_the_batch_in_any_bit():
    search, source = translator(tiny_model()), random_source()
    usual = search(source, LENGTHS, LIMITS)
    for shift in range(1, B):
        order = (np.arange(B) + shift) % B
        again = search(source[order], LENGTHS[order], LIMITS[order])
        assert_same_bits([x[order] for x in usual], again)


PLACES = np.arange(23) % B


def queued(lengths=LENGTHS[PLACES]):
    """The results of sentences that share eleven lanes, in a wider bucket."""
    search = translator(tiny_model(), lanes=11)
    return search(random_source(width=13)[PLACES], lengths, LIMITS[PLACES])


def test_sentences_that_share_lanes_have_the_same_results_in_any_place_of_the_queue():
    """Every bit is equal for the same number of lanes and the same bucket; for others, scores
    differ by rounding.

    Up to two of eleven lanes take sentences together, also the last that is encoded and the next.
    """
    usual, shared = translator(tiny_model())(random_source(), LENGTHS, LIMITS), queued()
    for i in ("tokens", "lengths"):
        np.testing.assert_array_equal(getattr(shared, i), getattr(usual, i)[PLACES])
    np.testing.assert_allclose(shared.scores, usual.scores[PLACES], rtol=1e-5, atol=1e-5)
    assert_same_bits(shared, [x[PLACES] for x in shared])


def test_padding_rows_have_no_translation_and_do_not_change_others():
    search, source = translator(tiny_model()), random_source()
    for run, usual_lengths in (
        (lambda lengths: search(source, lengths, LIMITS), LENGTHS),
        (queued, LENGTHS[PLACES]),
    ):
        present = len(usual_lengths) * 3 // 5
        lengths = np.where(np.arange(len(usual_lengths)) < present, usual_lengths, 0)
        padded, again = run(usual_lengths), run(lengths)
        assert_same_bits([x[:present] for x in padded], [x[:present] for x in again])
        assert (again.lengths[present:] == 0).all() and np.isneginf(again.scores[present:]).all()


def test_encoding_in_parts_equals_encoding_at_once():
    """Also where the last part has fewer sentences, and before rows of padding."""

    class Stub(Transformer):
        def empty_encoded(self, sentences, length):
            return jnp.zeros((sentences, length), int)

        def apply(self, variables, source, segments, method):
            assert method == "encode"
            return 100 * source + segments

    model, source = Stub(tiny_model().config), jnp.asarray(random_source())

    @jax.jit
    def encoded(lengths):
        parts = range(1, B + 1)
        return [module.encode_batches(model, {}, source, lengths, batch) for batch in parts]

    for rows in (B, B - 2):
        lengths = jnp.asarray(np.where(np.arange(B) < rows, LENGTHS, 0))
        expected = 100 * source + (jnp.arange(S) < lengths[:, None])
        for result in encoded(lengths):
            np.testing.assert_array_equal(result[:rows], expected[:rows])


def test_results_do_not_depend_on_ids_beyond_the_length_of_a_source_in_any_bit():
    search, source = translator(tiny_model()), random_source()
    changed = np.where(np.arange(S) < LENGTHS[:, None], source, random_source(1, [S] * B))
    assert (source != changed).any()
    assert_same_bits(search(source, LENGTHS, LIMITS), search(changed, LENGTHS, LIMITS))


# The graph.


@pytest.mark.parametrize("options", [
    dict(dtype="bfloat16", positions="rotary", norm="pre", pad_id=3, start_id=3,
         tied_embeddings="three-way", remat=True),
    dict(dtype="mixed", num_decoder_layers=2, positions="learned", attention_bias=True,
         output_bias=True),
    dict(positions="relative", relative_tables="layer", remat=True, scale_scores=False, d_k=7),
    dict(positions="alibi", norm_function="rms", gated_feed_forward=True, dtype="bfloat16"),
])  # fmt: skip
def test_every_kind_of_model_can_be_searched_with_scores_in_float32(options):
    model = tiny_model(**options)
    variables = {"params": parameter_shapes(model.config)}
    shapes = jax.eval_shape(
        partial(search_once, model, B), variables, jnp.ones((B, S), int), jnp.asarray(LENGTHS),
        jnp.asarray(LIMITS),
    )  # fmt: skip
    assert shapes.tokens.shape == (B, SEARCH["nbest"], T)
    assert shapes.scores.dtype == shapes.log_probs.dtype == jnp.float32


def equations(jaxpr, stop=()):
    """All equations of a jaxpr, including nested ones, except inside the primitives `stop`."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name not in stop:
            for inner in jaxprs_in_params(equation.params):
                yield from equations(inner, stop)


def test_the_graph_encodes_and_projects_sentences_when_lanes_take_them():
    layers = 2
    model = tiny_model(num_layers=layers)
    graph = jax.make_jaxpr(partial(search_once, model, B))(
        random_variables(model), random_source(), LENGTHS, LIMITS
    ).jaxpr
    assert not any("callback" in equation.primitive.name for equation in equations(graph))

    def dots(jaxpr):
        return sum(e.primitive.name == "dot_general" for e in equations(jaxpr))

    def loops(jaxpr):
        whiles = (e for e in equations(jaxpr, stop=("while",)) if e.primitive.name == "while")
        return [e.params["body_jaxpr"].jaxpr for e in whiles]

    outside = list(equations(graph, stop=("while",)))
    (search,) = loops(graph)
    (fill,) = loops(search)
    (encode,) = loops(fill)
    assert sum(e.primitive.name == "dot_general" for e in outside) == 0
    assert sum(e.primitive.name == "scan" for e in outside) == 1  # the walk back

    encoder = layers * (4 + 2 + 2)  # projections, attention, feed-forward
    memory = layers * 2  # cross-attention keys and values
    assert dots(encode) == encoder
    blocks = 1 + 2 + 3 + 4  # one branch for each number of blocks of the cache
    self_attention, cross_attention, feed_forward, logits = 4 + 2 * blocks, 2 + 2, 2, 1
    step = layers * (self_attention + cross_attention + feed_forward) + logits
    assert dots(search) == step + memory + encoder
    assert dots(fill) == memory + encoder
    branches = [
        [dots(branch.jaxpr) for branch in e.params["branches"]]
        for e in equations(search)
        if e.primitive.name == "cond"
    ]
    # Attention to the blocks. Entries are written into each of four blocks, and logits are summed,
    # for each platform.
    assert branches.count([2, 4, 6, 8]) == layers
    assert branches.count([0, 0]) == len(branches) - layers == 4 * layers + 1
    # A deterministic GPU writes in parallel only if places are distinct.
    scatters = [e for e in equations(search) if e.primitive.name == "scatter"]
    assert scatters and all(e.params["unique_indices"] for e in scatters)
