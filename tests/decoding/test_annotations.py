"""Annotated translations: the numbers of --mode=score and --mode=align, for the generated ids."""

import json
import unicodedata

import pytest

from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.decoding.command.formats import formats_of
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.engine.teacher_forcing import TeacherForcing
from seq2seq.decoding.results import Hypothesis, Item, Source, Translation
from seq2seq.runtime.errors import CONFIGURATION, UserError
from tests.support.models.quick_search import quick_searches
from tests.support.models.random_translator import ALL_RULES, LINES, scored, translator_of
from tests.support.tiny import WORDS

ENDS = dict(forced_end=True, max_length=5, alpha=3.0)
TEXTS = [*LINES, "zehn " * 60]  # one is blank, the last is truncated


@pytest.fixture(scope="module")
def translator():
    """An ensemble with rules that change scores; sources of at most 16 tokens."""
    return translator_of(**ALL_RULES)


# Hypotheses of any search have the scores of their ids. Those of a real one are below.
@quick_searches()
def test_the_annotations_of_a_hypothesis_equal_the_scores_of_its_text(translator):
    translations = list(translator.stream(TEXTS, annotate=True))
    assert [translation.hypotheses[0].text for translation in translations] == [
        translation.hypotheses[0].text for translation in translator.stream(TEXTS)
    ]
    pairs = [
        (text, hypothesis)
        for text, line in zip(TEXTS, translations, strict=True)
        for hypothesis in line.hypotheses
        if text
    ]
    forced = scored(translator, [(text, hypothesis.text) for text, hypothesis in pairs])
    assert len(pairs) == 3 * (len(TEXTS) - 1) and any(len(set(x.links)) > 2 for x in forced)
    for (text, hypothesis), expected in zip(pairs, forced, strict=True):
        assert hypothesis.scored == expected  # every bit
        assert hypothesis.scored.tokens == [*hypothesis.text.split(), "</s>"]
        assert hypothesis.scored.source_tokens == [*text.split()[:15], "</s>"]
        assert len(hypothesis.scored.log_probs) == hypothesis.length == len(hypothesis.ids) + 1
    assert translations[LINES.index("")].hypotheses == [Hypothesis("", 0.0)]


def outputs(translator, mode, lines, annotate=False):
    """The output objects of a job with --format=jsonl, None for a blank line."""
    formats = formats_of("jsonl")
    progress = DecodingProgress(0, False, False)
    output_lines, results = (
        OutputLines(translator, mode, formats, "in", progress, annotate=annotate),
        {},
    )
    items = (formats.input.parse(line, "in:1", mode != "translate") for line in lines)
    for group in output_lines(enumerate(items)):
        results |= group
    return [results[i] for i in range(len(lines))]


@quick_searches()
def test_annotated_json_equals_the_output_of_the_other_modes(translator):
    lines = ["", *(json.dumps({"text": text, "id": i}) for i, text in enumerate(TEXTS))]
    annotated = outputs(translator, "translate", lines, annotate=True)
    plain = outputs(translator, "translate", lines)
    scores, links = (outputs(translator, mode, annotated) for mode in ("score", "align"))
    assert annotated[0] == plain[0] == scores[0] == links[0] == ""
    new = ["log_prob", "tokens", "log_probs", "alignment"]
    for text, *texts in zip(TEXTS, annotated[1:], plain[1:], scores[1:], links[1:], strict=True):
        output, usual, scored, aligned = map(json.loads, texts)
        if not text:
            assert output == usual  # as in the other modes, a blank text has no numbers
            continue
        assert {name: scored[name] for name in new[:3]} == {name: output[name] for name in new[:3]}
        assert aligned["alignment"] == output["alignment"]
        assert output["source_tokens"] == [*text.split()[:15], "</s>"]
        assert output["truncated"] == (len(text.split()) > 15)
        best, *rest = output["nbest"]
        assert {name: best[name] for name in new} == {name: output[name] for name in new}
        assert len(rest) == 2 and all(hypothesis.keys() == best.keys() for hypothesis in rest)
        for added in (output, *output["nbest"]):
            for name in new:
                del added[name]
        del output["source_tokens"]
        assert output == usual


def test_the_numbers_refer_to_the_generated_ids_also_if_the_text_splits_differently(translator):
    """The same model with a vocabulary that has the piece "eins zwei"."""
    words = ListTokenizer("words", "\n".join([*WORDS[:-1], "eins zwei"]).encode())
    forcing = TeacherForcing(translator.engine, translator.decoding, (words, words))
    ids = [words.id_of("eins zwei"), words.id_of("drei")]
    source, text = words.encode("drei vier"), words.decode(ids)
    ((hypothesis,),) = forcing.annotated(
        [Source(0, source)], [[Hypothesis(text, -1.0, -1.0, 3, ids)]]
    )
    assert text == "eins zwei drei" and hypothesis.scored.tokens == ["eins zwei", "drei", "</s>"]
    assert list(forcing.scored([forcing.pairs.of_ids(source, ids)])) == [{0: hypothesis.scored}]
    split_again = next(
        forcing.scored(forcing.pairs.of_lines([(0, Item("drei vier", "", target=text))]))
    )[0]
    assert split_again.tokens == ["eins", "zwei", "drei", "</s>"]
    assert split_again.log_prob != hypothesis.scored.log_prob


@pytest.mark.parametrize("pieces, text", [("<s>", ""), ("elf", "elf"), ("<s> elf", "elf")])
def test_forced_tokens_cost_nothing_and_special_ones_are_no_text(translator, pieces, text):
    """Given targets are scored as the same translations, with or without the text of the pieces."""
    lines = [line for line in LINES if line]
    forced = translator.with_options(forced_prefix=pieces, **ENDS)
    ids = [forced.target_tokenizer.id_of(piece) for piece in pieces.split()]
    streamed = zip(lines, forced.stream(lines, annotate=True), strict=True)
    results = [
        (line, hypothesis)
        for line, translation in streamed
        for hypothesis in translation.hypotheses
    ]
    assert len({hypothesis.text for _, hypothesis in results}) > 3
    assert len({hypothesis.length for _, hypothesis in results}) > 1
    for without in ("", text):
        texts = [(line, hypothesis.text.removeprefix(without)) for line, hypothesis in results]
        for (_, hypothesis), rescored in zip(results, scored(forced, texts), strict=True):
            assert list(hypothesis.ids[: len(ids)]) == ids and hypothesis.text.startswith(text)
            assert rescored == hypothesis.scored
            assert rescored.log_probs[: len(ids)] == [0.0] * len(ids)
            assert rescored.score == pytest.approx(hypothesis.score, abs=1e-4)
            assert (rescored.log_probs[-1] == 0.0) == (hypothesis.length == ENDS["max_length"])


def test_each_source_of_a_call_has_its_own_forced_tokens_before_its_prefix(translator):
    forced, source = translator.with_options(forced_prefix="elf", **ENDS), [5, 6, 7]
    starts = [((), ()), ((9,), ()), ((), (9,)), ((9, 8), (5,)), ((8,), (9, 9))]
    sources = [
        Source(number, source, prefix, forced=free) for number, (free, prefix) in enumerate(starts)
    ]
    (call,) = forced.engine.search([sources])
    best = {searched.number: nbest[0] for searched, nbest in call}
    for number, (free, prefix) in enumerate(starts):
        assert tuple(best[number].ids[: len(free + prefix)]) == free + prefix
        pair = forced.forcing.pairs.of_ids(source, best[number].ids, len(free))
        (score,) = next(iter(forced.forcing.scored([pair]))).values()
        assert score.log_prob == pytest.approx(best[number].log_prob, abs=1e-4)
        assert [x == 0.0 for x in score.log_probs[: len(free + prefix)]] == (
            [True] * len(free) + [False] * len(prefix)
        )


def test_forced_pieces_that_are_unknown_or_leave_no_room_are_refused(translator):
    for options, message in (
        (dict(forced_prefix="elf nowhere"), "decoding.forced_prefix: .* got 'nowhere'"),
        (dict(forced_prefix="</s>"), "decoding.forced_prefix: .* got '</s>'"),
        (dict(forced_prefix="elf elf elf", max_length=3, min_length=0),
         "decoding.forced_prefix has 3 tokens: expected at most 2, which leave room for the end"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message) as error:
            translator.with_options(**options)
        assert error.value.code == CONFIGURATION
    forced = translator.with_options(forced_prefix="elf elf", max_length=4)
    with pytest.raises(UserError, match="line 1: its prefix has 2 tokens, expected at most 1"):
        list(forced.stream([Item("eins", "eins", prefix="elf eins")]))


@quick_searches()
def test_equal_looking_texts_have_equal_results_on_every_way_in(translator):
    """ü is one character or u and two dots."""
    composed = "fünf eins", "elf fünf"
    spelled = [unicodedata.normalize("NFD", text) for text in composed]
    results = []
    for source, target in (composed, spelled):
        items = [Item(source, "", prefix=target), Item("eins", "", source_prefix=source[:-4])]
        translations = list(translator.stream(items))
        forced = translator.with_options(forced_prefix=target[4:], suppress=target[4:])
        results.append((translations, [*translator.score([(source, target)])], forced.decoding))
        assert forced.engine.forced == tuple(translator.target_tokenizer.encode("fünf"))
    assert results[0][:2] == results[1][:2]
    (translation,) = translator.score([("fünf {", "elf }")])
    assert translation.unknown == ("{", "}")


@quick_searches()
def test_without_annotations_there_is_no_further_pass(translator, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a teacher-forced pass")

    monkeypatch.setattr(TeacherForcing, "_batch", refuse)
    assert all(
        hypothesis.scored is None
        for line in translator.stream(LINES)
        for hypothesis in line.hypotheses
    )
    with pytest.raises(AssertionError, match="a teacher-forced pass"):
        list(translator.stream(LINES, annotate=True))


def test_a_line_without_a_valid_hypothesis_has_no_numbers(translator):
    impossible = Hypothesis("", float("-inf"), float("-inf"), 1, [])
    good = Hypothesis("elf", -1.0, -1.0, 2, translator.target_tokenizer.encode("elf"))
    encode = translator.source_tokenizer.encode
    sources = [Source(i, encode(text)) for i, text in enumerate(("eins", "zwei drei"))]
    first, second = translator.forcing.annotated(sources, [[impossible], [good, good]])
    assert first == [impossible]
    (expected,) = scored(translator, [("zwei drei", "elf")])
    assert second == [good._replace(scored=expected)] * 2
    jsonl = formats_of("jsonl")
    item = jsonl.input.parse('{"text": "eins"}', "in:1")
    written = json.loads(jsonl.output.render(0, item, Translation(first, 2, 2), False))
    added = {"translation": "", "score": None, "truncated": False, "unknown": [], "replaced": []}
    assert written == {"text": "eins"} | added


def test_saved_results_depend_on_mode_formats_and_annotations(translator):
    def facts(mode, formats, annotate=False):
        progress = DecodingProgress(0, False, False)
        return tuple(
            OutputLines(
                translator, mode, formats_of(formats), "in", progress, False, annotate
            ).settings
        )

    settings = {
        facts("translate", "jsonl"),
        facts("score", "jsonl"),
        facts("translate", "jsonl", annotate=True),
        facts("translate", "text:jsonl"),
        facts("translate", "jsonl:text"),
    }
    assert len(settings) == 5
    assert facts("translate", "jsonl:jsonl") == facts("translate", "jsonl")
