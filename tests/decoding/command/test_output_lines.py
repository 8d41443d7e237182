"""Output lines: truncated lines are marked in the output, reported and counted."""

import json

import jax
import pytest

from seq2seq.decoding.command.formats import Item, formats_of
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.engine.teacher_forcing import TeacherForcing
from tests.support.models.echo import echoing_translator
from tests.support.models.random_translator import translator_of
from tests.support.tiny import WORDS


@pytest.fixture
def translator():
    return echoing_translator()[0]


def test_jsonl_marks_each_line_whose_source_was_truncated(translator, capsys):
    """The model's max_length is 70 tokens, with the end token."""
    formats = formats_of("jsonl", None, None)
    output_lines = OutputLines(
        translator, "translate", formats, "in.txt", DecodingProgress(4, True, False)
    )
    texts = ["eins", "zwei " * 69, "zwei " * 70, ""]
    lines = {}
    for group in output_lines(
        (i, Item(text, json.dumps({"text": text}))) for i, text in enumerate(texts)
    ):
        lines |= group
    assert [json.loads(lines[i])["truncated"] for i in range(4)] == [False, False, True, False]
    assert (output_lines.truncated, output_lines.blank) == (1, 1)
    assert "in.txt:3: 71 tokens > 70, truncated" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["score", "align"])
def test_the_results_of_a_call_are_available_before_the_next_call(mode, monkeypatch):
    """Pairs of one window, three batches, and blank ones; so a job can save them."""
    translator, batches = translator_of(), []
    batch = TeacherForcing._batch

    def counted(self, *arguments):
        batches.append(arguments)
        return batch(self, *arguments)

    monkeypatch.setattr(TeacherForcing, "_batch", counted)
    capacity = 3 * jax.local_device_count()
    pairs = [(WORDS[i % 11], " ".join(WORDS[: i % 5])) for i in range(3 * capacity - 2)]
    items = [Item(source, source, target=target) for source, target in (("", ""), *pairs)]
    text, progress = formats_of("text", None, None), DecodingProgress(0, False, False)
    output_lines = OutputLines(translator, mode, text, "in.txt", progress)
    results, at_once = {}, []
    for group in output_lines(enumerate(items)):
        results |= group
        at_once.append((len(batches), len(results)))
    together = translator.engine.sizes.calls
    assert at_once[:2] == [(0, 1), (together, 1 + together * capacity)]
    assert sorted(results) == list(range(len(items))) and results[0] == ""
    expected = translator.score((item.text, item.target) for item in items)
    for number, translation in enumerate(expected):
        if number and mode == "score":
            assert float(results[number]) == pytest.approx(
                translation.hypotheses[0].score, abs=1e-3
            )


def test_a_line_without_an_allowed_translation_is_blank_and_reported(capsys):
    """No word twice, and more words than the vocabulary has: a search finds no hypothesis, a sample
    ends early."""
    impossible = dict(no_repeat_ngram=1, max_extra_length=14, min_length=15)
    outputs = {}
    for name, options in (("search", {}), ("sample", dict(samples=1))):
        translator = translator_of(nbest=1, **impossible, **options)
        formats, progress = formats_of("jsonl", None, None), DecodingProgress(0, False, False)
        output_lines = OutputLines(translator, "translate", formats, "in.txt", progress)
        groups = output_lines([(0, Item("eins", '{"text": "eins"}'))])
        (out,) = (group[0] for group in groups if group)
        outputs[name] = json.loads(out), capsys.readouterr().err
    line, err = outputs["search"]
    assert (line["translation"], line["score"]) == ("", None)
    assert "in.txt:1: no translation satisfies the search rules" in err
    line, err = outputs["sample"]
    words = line["translation"].split()
    assert len(words) == len(set(words)) >= len(WORDS) and not err
