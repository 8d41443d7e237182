"""Languages and tokens around texts in translations, scores and alignments of a random model."""

from dataclasses import replace

import numpy as np
import pytest

from seq2seq.data.tokenizers.byte_tokenizer import ByteTokenizer
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.decoding.command.formats import FORMATS
from seq2seq.decoding.command.resumable_output import hash_of
from seq2seq.decoding.results import Item, Source, source_text
from seq2seq.decoding.token_ids import encoded_sources
from seq2seq.decoding.translator import Translator
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from tests.support.models.tiny_tokenizers import multilingual, write_multilingual_run
from tests.support.tiny import tiny_config

ENG, KOR, CC = 61, 62, 63
LINES = ["ein Hund", "", "Hunde und Hunde", "in"]
TEMPLATES = {"source_begin": "{source}", "source_end": "<s>", "target_begin": "{target} <s>"}
OPTIONS = dict(beam_size=2, suppress="<pad> <unk> <2cc>", batch_size=3, max_extra_length=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_multilingual_run(tmp_path_factory.mktemp("multilingual") / "run", **TEMPLATES)


@pytest.fixture(scope="module")
def translator(run):
    languages = dict(source_language="eng_Latn", target_language="kor_Hang")
    return Translator.load(run, "average", **languages, **OPTIONS)


def sources_of(translator, items):
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    lines = list(enumerate(items))
    sources = encoded_sources(translator.engine, tokenizers, translator.affixes_of_line, lines)
    return [source._replace(prefix=tuple(source.prefix)) for source in sources]


def test_a_source_has_the_tokens_around_its_text_and_a_blank_line_has_none(translator):
    encode = translator.source_tokenizer.encode
    items = [
        Item("ein Hund", ""),
        Item("  ", "", source_prefix="ein "),
        Item(" Hund", "", target_language="eng_Latn", source_prefix="ein "),
        Item("ein " * 100, "", source_language="cc"),
    ]
    first, blank, second, long = sources_of(translator, items)
    assert first == Source(0, [ENG, *encode("ein Hund")], (), 0, (KOR, 1), (1,))
    assert first.length == len(encode("ein Hund")) + 3
    assert blank == Source(1, []) and blank.length == 0
    assert second == first._replace(number=2, forced=(ENG, 1))
    room, text = translator.engine.buckets[-1] - 3, encode("ein " * 100)
    assert (long.ids, long.cut) == ([CC, *text[:room]], len(text) - room)
    assert long.length == translator.engine.buckets[-1]


def test_lines_with_languages_of_their_own_equal_jobs_of_one_language(run, translator):
    codes = ["eng_Latn", "kor_Hang"]
    jobs = {
        code: Translator.load(
            run, "average", source_language="eng_Latn", target_language=code, **OPTIONS
        )
        for code in codes
    }
    programs = {job.engine.program(job.engine.buckets[0]) for job in jobs.values()}
    assert len(programs) == 1  # nothing is compiled again for another language
    alone = {code: list(job.stream(LINES, annotate=True)) for code, job in jobs.items()}
    items = [Item(text, "", target_language=code) for text in LINES for code in codes]
    together = list(translator.stream(items, annotate=True))
    assert together == [alone[code][i] for i in range(len(LINES)) for code in codes]
    assert any(together[0::2][i] != together[1::2][i] for i in range(len(LINES)))
    for item, translation in zip(items, together, strict=True):
        (best,) = translation.hypotheses
        if not item.text:
            assert (best.text, best.scored) == ("", None)
            continue
        assert list(best.ids[:2]) == [translator.target_tokenizer.id_of(item.target_language), 1]
        assert best.scored.log_probs[:2] == [0, 0] and min(best.scored.log_probs[2:]) < 0
        assert best.scored.score == pytest.approx(best.score, rel=1e-5)
        assert not any(name in best.text for name in ("Latn", "Hang", "<s>"))
        sources = best.scored.source_tokens
        assert (sources[0], sources[-2:]) == ("eng_Latn", ["</s>", "<s>"])
        assert all(i < len(sources) - 2 for i, _ in best.scored.links)


def test_a_given_target_is_scored_with_the_tokens_around_texts(translator):
    target = translator.target_tokenizer
    items = [Item("ein Hund", "", target="Hunde", target_language="eng_Latn")]
    ((translation,),) = (
        group.values() for group in translator.numbered_scores(enumerate(items)) if group
    )
    (pair,) = translator.forcing.pairs.of_lines(list(enumerate(items)))
    encode = translator.source_tokenizer.encode
    assert pair.source == [ENG, *encode("ein Hund"), 2, 1] and pair.after == 1
    assert pair.target == [ENG, 1, *target.encode("Hunde"), 2]
    scored = translation.hypotheses[0].scored
    by_ids = translator.forcing.pairs.of_ids(pair.source[:-2], pair.target[:-1], 2, after=(1,))
    assert by_ids == pair and scored.log_probs[:2] == [0, 0]
    short = [translator.forcing.pairs.of_ids([i], [i, 1, 5], after=(1,)) for i in range(4, 20)]
    for group in translator.forcing.scored(short):  # never to the end token or after it
        assert all({i for i, _ in result.links} == {0} for result in group.values())
    weights = translator.attention("ein Hund", "Hunde")
    assert weights.source == scored.source_tokens
    assert weights.target == ["kor_Hang", *scored.tokens[1:]]
    attention = translator.attention("ein Hund")
    (translated,) = translator.stream(["ein Hund"])
    assert [target.id_of(piece) for piece in attention.target] == [*translated.hypotheses[0].ids, 2]
    np.testing.assert_allclose(weights.cross.sum(-1), 1, atol=1e-5)


def test_a_scored_source_is_truncated_as_that_of_a_search(translator):
    item = Item("ein " * 100, "", target="Hund")
    (source,), (pair,) = (
        sources_of(translator, [item]),
        translator.forcing.pairs.of_lines([(0, item)]),
    )
    end = translator.engine.models[0].config.end_id
    assert list(pair.source) == [*source.ids, end, *source.after]
    assert pair.cut == source.cut > 0


@pytest.mark.parametrize(
    "line, values",
    [
        ('{"text": "a", "target_language": "x", "source_prefix": "p ", "source_language": null}',
         ("a", "", "", "x", "p ")),
        ("a\ttarget_language=x\tb\tsource_prefix=p ", ("a", "b", "", "x", "p ")),
        ("source_language=y\tlanguage=x\tsource_language=z", ("source_language=y", "language=x",
         "z", "", None)),
    ],
)  # fmt: skip
def test_a_line_names_its_languages_and_its_source_prefix(line, values):
    name = "jsonl" if line.startswith("{") else "tsv"
    item = FORMATS[name].parse(line, "f:1")
    fields = item.source_language, item.target_language, item.source_prefix
    assert (item.text, item.line) == (values[0], line) and fields == values[2:]
    if name == "tsv":
        assert item.target == values[1]


def test_a_source_prefix_is_before_each_source_that_has_none_of_its_own(run):
    languages = dict(source_language="eng_Latn", target_language="kor_Hang")
    options = languages | OPTIONS
    plain, prefixed = (
        Translator.load(run, "average", source_prefix=text, **options) for text in ("", "Hunde ")
    )
    texts = ["Hunde ein Hund", "", "ein in"]
    items = ["ein Hund", "", Item("in", "", source_prefix="ein ")]
    texts, items = [*texts, "ein"], [*items, Item("ein", "", source_prefix="")]
    assert plain.translate(texts)[0] != plain.translate(["ein Hund"])[0]
    for translator in (prefixed, prefixed.with_options(nbest=2).with_options(nbest=1)):
        results = [line.hypotheses[0] for line in translator.stream(items)]
        assert results == [line.hypotheses[0] for line in plain.stream(texts)]
    scores = [[*t.score([(s, "Hunde")])] for t, s in ((plain, texts[0]), (prefixed, "ein Hund"))]
    assert scores[0] == scores[1]
    sources = [t.attention(s).source for t, s in ((plain, texts[0]), (prefixed, "ein Hund"))]
    assert sources[0] == sources[1]
    with pytest.raises(TypeError, match="source_prefix must be a string"):
        Translator.load(run, "average", source_prefix=1, **languages)


def test_the_white_space_of_a_source_prefix_counts():
    """That around a text counts for byte-level tokenizers, as in transformers; never on its own."""
    characters, item = ListTokenizer("characters", b"a\n \n"), Item(" a  ", "", source_prefix=" ")
    assert source_text(item, characters) == " a"
    assert source_text(item, ByteTokenizer()) == "  a  "
    for tokenizer in (characters, ByteTokenizer()):
        assert source_text(item._replace(source_prefix="x "), tokenizer).startswith("x ")
        assert source_text(item._replace(text=" \t"), tokenizer) == ""


def test_saved_results_depend_on_languages_and_source_prefixes(translator):
    assert translator.affixes_of_line.languages == ["eng_Latn", "kor_Hang"]
    items = [Item("a", "a"), Item("a", "a", source_prefix="b"), Item("a", "a", prefix="c")]
    assert len(set(map(hash_of, items))) == 3


def refusal(function, *arguments, **options):
    with pytest.raises(UserError) as refused:
        list(function(*arguments, **options))
    assert "\n" not in str(refused.value)
    return refused.value.code, str(refused.value)


def test_a_missing_or_unknown_language_is_an_error_of_one_line(run, translator, tmp_path):
    item = Item("ein", "", target_language="kor")
    code, message = refusal(translator.stream, ["ein", item])
    assert code == DATA and "line 2: target_language is unknown" in message
    assert "did you mean kor_Hang?" in message
    without = Translator.load(run, "average", **OPTIONS)
    assert list(without.stream(["", " "]))  # blank lines need no language
    code, message = refusal(without.stream, ["ein"])
    assert code == DATA and message.startswith("line 1: source_language is missing")
    assert message.endswith("set it, or --source_language")
    code, message = refusal(without.affixes_of_line.of_job)
    assert code == CONFIGURATION and message.startswith("--source_language is missing")
    other = write_multilingual_run(tmp_path / "other", source_begin="{target}")
    code, message = refusal(Translator.load, other, "average", source_language="cc")
    assert code == CONFIGURATION and message.startswith("--source_language has no effect")
    code, message = refusal(Translator.load, [run, other], "average")
    assert code == CHECKPOINT and "data.source_begin differs" in message
    code, message = refusal(
        Translator.load, run, "average", source_language="cc", target_language="cc", max_length=2
    )
    assert code == CONFIGURATION and "data.target_begin has 2 tokens" in message


def test_the_start_token_is_that_of_the_target_language_of_the_job(tmp_path):
    data = {"source_end": "{source}", "target_start": "{target}", "source_language": "cc"}
    run = write_multilingual_run(tmp_path / "run", **data)
    assert refusal(Translator.load, run, "average")[1].startswith("--target_language is missing")
    translator = Translator.load(run, "average", target_language="kor_Hang", **OPTIONS)
    assert translator.engine.models[0].config.start_id == KOR
    tokens = translator.source_tokenizer.encode("ein")
    items = [Item("ein", "", source_language="eng_Latn", target_language="kor_Hang")]
    assert sources_of(translator, items) == [Source(0, tokens, (), 0, (), (ENG,))]
    code, message = refusal(translator.stream, [Item("ein", "", target_language="cc")])
    assert code == DATA and "another one than that of the job" in message


def test_without_pieces_around_texts_a_line_has_no_other_tokens():
    config = tiny_config("tsv:nowhere")
    model = replace(config.model, source_vocab_size=64, target_vocab_size=64)
    translator = Translator([model], (multilingual(),) * 2, config.decoding)
    items = [Item("ein", "", target_language="of a document")]
    assert sources_of(translator, items) == [Source(0, multilingual().encode("ein"))]
