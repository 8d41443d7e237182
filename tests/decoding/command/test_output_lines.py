"""Output lines: truncated lines are marked in the output, reported and counted."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from seq2seq.decoding.command.formats import Item, formats_of
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.engine.teacher_forcing import TeacherForcing
from seq2seq.model.search.hypotheses import Hypotheses
from tests.support.models.echo import echoing_translator
from tests.support.models.random_translator import translator_of
from tests.support.tiny import WORDS


@pytest.fixture
def translator():
    return echoing_translator()[0]


def test_jsonl_marks_each_line_whose_source_was_truncated(translator, capsys):
    """The model's max_length is 70 tokens, with the end token."""
    formats = formats_of("jsonl")
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


def test_lines_with_characters_that_the_vocabulary_lacks_are_marked_and_counted(translator, capsys):
    formats = formats_of("jsonl")
    progress = DecodingProgress(5, True, False)
    output_lines = OutputLines(translator, "translate", formats, "in.txt", progress)
    texts = ["ei\u00adns \u202ezwei", "eins x{y} \u0301", "\u2060", "drei", "fu\u0308nf x{y}"]
    lines = {}
    for group in output_lines(
        (i, Item(text, json.dumps({"text": text}))) for i, text in enumerate(texts)
    ):
        lines |= group
    marks = [[json.loads(lines[i])[name] for i in range(5)] for name in ("unknown", "replaced")]
    assert marks[0] == [[], ["x{y}", "\u0301"], [], [], ["x{y}"]]
    assert marks[1] == [["\u00ad", "\u202e"], [], ["\u2060"], [], []]
    translations = [json.loads(lines[i])["translation"] for i in (0, 3, 4)]
    assert translations == ["eins zwei", "drei", "fünf ⁇"]  # the echo of the source, in NFC
    output_lines.report()
    lacking, replaced, last = capsys.readouterr().err.splitlines()
    assert lacking == "2 lines have characters that the vocabulary lacks, such as x{y}, U+0301"
    assert replaced.startswith("2 lines had ") and replaced.endswith(
        "such as U+00AD, U+202E, U+2060"
    )
    assert last.startswith("5 lines, 1 blank, 0 truncated")


def test_a_run_of_an_earlier_version_changes_no_text(translator):
    translator.decoding = replace(translator.decoding, clean_source=False)
    translator.affixes_of_line.config = replace(translator.affixes_of_line.config, nfc=False)
    translated = list(translator.stream(["ei\u00adns zwei", "fu\u0308nf", "fünf"]))
    assert [translation.text for translation in translated] == ["⁇ zwei", "⁇", "fünf"]
    assert [line.unknown for line in translated] == [("ei\u00adns",), ("fu\u0308nf",), ()]


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
    text, progress = formats_of("text"), DecodingProgress(0, False, False)
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


def test_a_line_without_an_allowed_translation_is_blank_and_reported(translator, capsys):
    """A search whose rules allow no hypothesis finds none."""

    def none(_, request):
        shape = (*request.lengths.shape, 1)
        scores = np.full(shape, -np.inf, np.float32)
        return Hypotheses(request.source[:, :, None], np.zeros(shape, int), scores, scores)

    translator.engine._search = lambda program: none
    formats, progress = formats_of("jsonl"), DecodingProgress(0, False, False)
    output_lines = OutputLines(translator, "translate", formats, "in.txt", progress)
    groups = output_lines([(0, Item("eins", '{"text": "eins"}'))])
    (out,) = (json.loads(group[0]) for group in groups if group)
    assert (out["translation"], out["score"]) == ("", None)
    assert "in.txt:1: no translation satisfies the search rules" in capsys.readouterr().err
