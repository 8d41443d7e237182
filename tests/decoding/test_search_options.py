"""Options without effect are refused; values are checked for type in Python as in flags."""

import re
from dataclasses import fields

import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.results import Item
from seq2seq.decoding.search_options import (
    ALIGN,
    BEAM,
    EXPORT,
    OPTIONS,
    SAMPLING,
    SCORE,
    check_effect,
)
from seq2seq.model.search.arguments import Mask
from seq2seq.model.search.rules import (
    forbid_sequences_mask,
    no_repeat_ngram_mask,
    suppress_first_mask,
)
from seq2seq.runtime.errors import CONFIGURATION, UserError
from tests.support.models.echo import echoing_translator
from tests.support.models.random_translator import translator_of

DRAW = {"temperature", "top_k", "top_p", "seed"}
SEARCH = {"beam_size", "nbest", "horizon", "stop"}
LENGTHS = {f"{end}_length{ratio}" for end in ("min", "max") for ratio in ("", "_ratio")}
CHOICE = (
    SEARCH
    | DRAW
    | LENGTHS
    | {
        "max_extra_length",
        "no_repeat_ngram",
        "suppress_first",
        "forbid_sequences",
        "samples",
        "mbr",
    }
)
SCORES = {"alpha", "power_penalty", "repetition_penalty", "suppress", "renormalize", "forced_end"}
WITHOUT_EFFECT = {
    BEAM: DRAW | {"target"},
    EXPORT: DRAW
    | {"model_parallel", "target", "annotate", "reference", "metric", "baseline", "prefix"},
    SAMPLING: SEARCH | {"target"},
    SCORE: CHOICE | {"annotate", "reference", "metric", "baseline", "prefix"},
    ALIGN: CHOICE | SCORES | {"annotate", "reference", "metric", "baseline", "prefix"},
}


@pytest.mark.parametrize("mode", WITHOUT_EFFECT)
def test_every_option_without_effect_in_a_mode_is_refused(mode):
    assert {field.name for field in fields(DecodingConfig)} < OPTIONS.keys()
    for name in OPTIONS:
        if name in WITHOUT_EFFECT[mode]:
            with pytest.raises(
                UserError, match=f"^--{name} has no effect on {re.escape(mode)}:"
            ) as error:
                check_effect(["dtype", name], mode)
            assert error.value.code == CONFIGURATION
        else:
            check_effect([name], mode)


@pytest.fixture(scope="module")
def translator():
    return translator_of(samples=0)


def test_the_pieces_of_an_option_become_the_masks_of_its_rule(translator):
    id_of = translator.target_tokenizer.id_of
    eins, zwei, end = map(id_of, ("eins", "zwei", "</s>"))
    options = dict(forbid_sequences=" eins zwei | zwei ||", suppress_first="zwei </s>")
    with pytest.raises(
        UserError, match=r"forbid_sequences: expected pieces .*, got '\|\|'; remove"
    ):
        translator.with_options(**options)
    options["forbid_sequences"] = " | eins zwei | zwei |"
    changed = translator.with_options(**options, no_repeat_ngram=3)
    assert changed.engine.options.masks == (
        Mask(no_repeat_ngram_mask, 3),
        Mask(suppress_first_mask, (zwei, end)),
        Mask(forbid_sequences_mask, ((eins, zwei), (zwei,))),
    )
    assert not translator.engine.options.masks


REFUSED = {
    "top_k has no effect on a beam search": dict(top_k=3),
    "beam_size, --nbest has no effect on sampling": dict(samples=2, beam_size=4, nbest=1),
    "max_length must be an integer, got 3.5": dict(max_length=3.5),
    "power_penalty must be true or false, got 'no'": dict(power_penalty="no"),
    "suppress must be a string, got None": dict(suppress=None),
    "min_length must be at most decoding.max_length, got 9 > 5": dict(min_length=9, max_length=5),
    "samples or decoding.nbest from 2 to 1024, got 1; set --samples": dict(mbr="bleu", nbest=1),
    "mbr must be one of chrf, .*, got 'ter'": dict(mbr="ter", samples=4),
    "horizon must be 0 with decoding.stop=now": dict(horizon=1, stop="now"),
    "stop must be one of exact, bound, full, now, got 'never'": dict(stop="never"),
    "min_length_ratio must be at most": dict(min_length_ratio=1.5, max_length_ratio=1.2),
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_of_a_call_are_checked(translator, message):
    with pytest.raises(UserError, match=message) as error:
        translator.translate(["eins"], **REFUSED[message])
    assert error.value.code == CONFIGURATION


def test_options_that_a_translator_has_may_have_no_effect_on_a_call(translator):
    drawing = translator.with_options(samples=2)
    assert drawing.with_options(seed=3).decoding.beam_size == translator.decoding.beam_size
    assert drawing.with_options(samples=0, nbest=2).decoding.hypotheses == 2


@pytest.mark.parametrize("lines", [["eins", "a \ud800"], ["eins", Item("a", "a", prefix="\ud800")]])
def test_a_lone_surrogate_names_its_line(lines):
    translator, _ = echoing_translator()
    with pytest.raises(ValueError, match=r"lines\[1\] has a lone surrogate: .*, got '\\ud800' at"):
        translator.translate(lines)


WRONG_PAIRS = {
    r"pairs\[1\] has a lone surrogate": ("zwei", "\udfff"),
    r"pairs\[1\] must be a string, got int \(3\)": ("zwei", 3),
    r"pairs\[1\] must be \(source, target\), got 'zwei'": "zwei",
    r"pairs\[1\] must be \(source, target\), got \('zwei',\)": ("zwei",),
}


@pytest.mark.parametrize("message", WRONG_PAIRS)
def test_a_pair_that_is_not_two_texts_is_named(translator, message):
    with pytest.raises((TypeError, ValueError), match=message):
        list(translator.score([("", ""), WRONG_PAIRS[message]]))
    with pytest.raises(ValueError, match="target has a lone surrogate"):
        translator.attention("eins", "\ud800")


def test_the_number_of_the_first_line_is_not_limited_and_at_least_0():
    translator, _ = echoing_translator()
    for first in (2**31, 2**40):
        assert [line.text for line in translator.stream(["eins", "zwei"], first)] == [
            "eins",
            "zwei",
        ]
    for first in (-1, 2.5, "1"):
        with pytest.raises(ValueError, match="first must be an integer of at least 0, got"):
            translator.stream(["eins"], first)
