"""Combinations of options: a Translator against a slow one, in rows with every pair of values.

A row compiles a search, so models and lines are small. Limits, prefixes and lengths differ between
the lines of a row.
"""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.decoding.results import Item
from seq2seq.decoding.translator import Translator
from seq2seq.model.config import ModelConfig
from seq2seq.model.search.arguments import Place
from seq2seq.model.search.rules import forbid_sequences_mask
from tests.support.marks import slow_except
from tests.support.models.random_parameters import random_params
from tests.support.oracles.slow_translator import CustomRule, SlowTranslator
from tests.support.pairwise import pairwise_rows

SOURCE, TARGET = (
    ListTokenizer("words", "\n".join(words).encode()) for words in ("abcdefghi", "JKLMNOPQR")
)
# The last two rows of the tables have no piece, so they are never generated. FIRST is the number of
# the first line.
V, LONGEST, FIRST = TARGET.size + 2, 10, 6
WITHOUT_PIECE = V - 2, V - 1
# One line is blank and two are truncated. Each of four devices gets three or four.
LINES = [
    "a b c", "d", "", "e f g h i a b c d", "b b", "c d e f", "g", "h i a", "i h g f e", "a c e",
    "f d", "h h h", "b d f h b d f h b d f h", "e", "g e c a g e c a g e",
]  # fmt: skip
PREFIXES = {0: "K", 3: "L J M", 4: "J", 7: "R R", 10: "N O P Q", 13: "J Q"}
SIZES = dict(d_model=16, num_layers=1, max_length=LONGEST, source_vocab_size=V, target_vocab_size=V)
WIRING = dict(d_ff=24, num_heads=2)
MODELS = {
    "post": WIRING,
    "pre": dict(**WIRING, norm="pre", positions="rotary", output_bias=True, num_decoder_layers=2),
    "rnn": dict(kind="rnn", num_decoder_layers=2),
    "rnn_attention": dict(kind="rnn_attention", tied_embeddings="none"),
}
ENSEMBLES = {name: [name] for name in MODELS} | {"ensemble": ["post", "rnn_attention"]}
WEIGHTS = {"ensemble": (0.2, 0.8)}
ALWAYS = dict(max_extra_length=3, temperature=1.3, seed=5)
SUPPRESSED = "<pad> <s> <unk> J O"
NOT_FIRST = dict(suppress=SUPPRESSED, renormalize=True, suppress_first="K L M </s>",
                 forbid_sequences="N N | P L | Q R Q")  # fmt: skip
# How a search that does not stop exactly stops, for each alpha.
EARLY = {0.6: dict(stop="now"), 1.7: dict(stop="full"), 0.0: dict(horizon=2)}
# The options that are set by each value of a factor.
OPTIONS = {
    "dtype": [dict(dtype=name) for name in ("float32", "mixed", "bfloat16")],
    "search": [dict(beam_size=1), dict(beam_size=5), dict(samples=3)],
    "nbest": [{}, dict(nbest=3)],
    "nucleus": [{}, dict(top_p=0.7, top_k=5)],
    "lanes": [dict(batch_size=n) for n in (1, 9)],  # of a device: fewer or more than sentences
    "limit": [{}, dict(max_length_ratio=1.4), dict(max_length=6)],
    "fewest": [{}, dict(min_length_ratio=0.9), dict(min_length=4)],
    "suppress": [{}, dict(suppress=SUPPRESSED), NOT_FIRST],
    "forced": [{}, dict(forced_prefix="J"), dict(forced_prefix="J", forced_end=True)],
    "repetition": [{}, dict(repetition_penalty=1.6), dict(repetition_penalty=0.7)],
    "ngram": [{}, dict(no_repeat_ngram=2), dict(no_repeat_ngram=1)],
    "penalty": [{}, dict(power_penalty=True)],
    "alpha": [dict(alpha=0.6), dict(alpha=1.7), dict(alpha=0.0)],
    "early": [{}, EARLY],
}  # fmt: skip
FURTHER = {
    "models": list(ENSEMBLES),
    "ids": [{}, dict(start_id=2), dict(start_id=0)],  # the start is also the end or padding
    "prefix": [{}, PREFIXES],
    "custom": [False, True],
    "annotate": [False, True],
}
FACTORS = OPTIONS | FURTHER


def valid(row):
    """Whether every value of a row has an effect: n-best lists and other stops need beams,
    top-k and top-p need samples."""
    of_beams, of_samples = row.get("nbest") or row.get("early"), row.get("nucleus")
    if "search" not in row:
        return not (of_beams and of_samples)
    samples, beams = (row["search"].get(name, 0) for name in ("samples", "beam_size"))
    return not (of_samples and not samples or of_beams and beams < 3)


ROWS = pairwise_rows(FACTORS, valid, seed=1500)  # of the seeds up to it, the fewest rows
BIAS = -np.abs(np.random.default_rng(7).normal(0, 1, V)).astype(np.float32)  # no reward
FORBIDDEN = [(4,), (5, 6), (7, 7), (8, 9, 8)]


def custom(logits, normalizer, history, t, sentences):
    return logits + BIAS, normalizer, forbid_sequences_mask(Place(history, t, V), FORBIDDEN)


def custom_allowed(written, token):
    tokens = (*written, token)
    return not any(tokens[-len(sequence) :] == sequence for sequence in FORBIDDEN)


@cache
def params_of(name):
    """Large parameters, so that hypotheses differ and every option has an effect."""
    return jax.device_put(random_params(ModelConfig(**SIZES, **MODELS[name])))


def translators(row):
    """The Translator of a row, and the slow one."""
    row = row | dict(early=row["early"] and EARLY[row["alpha"]["alpha"]])
    values = {name: value for factor in OPTIONS for name, value in row[factor].items()}
    options, names = DecodingConfig(**ALWAYS, **values), ENSEMBLES[row["models"]]
    configs = [ModelConfig(**SIZES, **MODELS[name], **row["ids"]) for name in names]
    params = [params_of(name) for name in names]
    weights = WEIGHTS.get(row["models"])
    rules, definition = (custom, CustomRule(BIAS, custom_allowed)) if row["custom"] else (None,) * 2
    fast = Translator(configs, (SOURCE, TARGET), options, weights, rules)
    fast.use(*params)
    suppress, first, free = (
        tuple(map(TARGET.id_of, pieces.split()))
        for pieces in (options.suppress, options.suppress_first, options.forced_prefix)
    )
    sequences = [
        tuple(map(TARGET.id_of, pieces.split()))
        for pieces in filter(None, options.forbid_sequences.split(" | "))
    ]
    same_dtype = [replace(config, dtype=options.dtype) for config in configs]
    models = list(zip(same_dtype, params, strict=True))
    never = *suppress, *WITHOUT_PIECE
    pieces = free, first, sequences
    return fast, SlowTranslator(models, options, weights, never, definition, *pieces)


# Rounding to bfloat16 differs where float32 sums of another order round differently: in few values
# if weights and their operands are rounded, in many if all activations are. So scores can differ in
# one dtype, and near ties can be decided otherwise.
USUAL = {"float32": 1e-4, "mixed": 1e-4, "bfloat16": 1e-2}  # median of the differences of scores
LARGEST = {"float32": 1e-4, "mixed": 5e-2, "bfloat16": 5e-2}
NEAR_TIES = {"float32": 0, "mixed": 2, "bfloat16": 2}  # lines


def assert_same_translations(row):
    fast, slow = translators(row)
    items = [Item(line, line, row["prefix"].get(i, "")) for i, line in enumerate(LINES)]
    translations = list(fast.stream(items, first=FIRST, annotate=row["annotate"]))
    different, errors = [], []
    for number, (item, translation) in enumerate(zip(items, translations, strict=True), FIRST):
        hypotheses, ids = (
            translation.hypotheses,
            tuple(SOURCE.encode(item.text)[: slow.longest - 1]),
        )
        if not ids:
            assert [h.text for h in hypotheses] == [""]
            continue
        prefix = tuple(TARGET.encode(item.prefix))
        expected = slow.hypotheses(number, ids, prefix)
        # A line without a possible hypothesis has a blank one of score −inf.
        tokens = [(*h.ids, slow.end_id) for h in hypotheses if h.score > -np.inf]
        if tokens != [h.tokens for h in expected]:
            different.append((item, tokens, expected))
            continue
        for h, e in zip(hypotheses, expected, strict=bool(expected)):
            assert h.length == len(e.tokens) and h.text == TARGET.decode(e.tokens)
            errors += [abs(h.log_prob - e.log_prob), abs(h.score - e.score)]
            if row["annotate"]:
                scored = slow.scored(ids, e.tokens, prefix)
                pairs = np.maximum([h.scored.log_probs, scored], -1e9)  # of −inf
                errors += abs(pairs[0] - pairs[1]).tolist()
    dtype = row["dtype"]["dtype"]
    assert len(different) <= NEAR_TIES[dtype], (row, different[0])
    assert np.median(errors) < USUAL[dtype] and max(errors) < LARGEST[dtype], row


# The fast rows have 49 of the 51 values and, of four such rows, the most pairs.
@pytest.mark.parametrize("number", slow_except((0, 1, 2, 17), range(len(ROWS))))
def test_a_translator_equals_the_slow_one(number):
    assert_same_translations(ROWS[number])
