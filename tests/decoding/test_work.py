"""The work of a job: truncated lines are marked in the output, reported and counted."""

import json

import pytest
from echo import echoing_translator

from decoding.formats import Item, formats_of
from decoding.progress import DecodingProgress
from decoding.work import Work


@pytest.fixture
def translator():
    return echoing_translator()[0]


def test_jsonl_marks_each_line_whose_source_was_truncated(translator, capsys):
    """The model's max_length is 70 tokens, with the end token."""
    formats = formats_of("jsonl", None, None)
    work = Work(translator, "translate", formats, "in.txt", DecodingProgress(4, True, False))
    texts = ["eins", "zwei " * 69, "zwei " * 70, ""]
    lines = {}
    for group in work((i, Item(text, json.dumps({"text": text}))) for i, text in enumerate(texts)):
        lines |= group
    assert [json.loads(lines[i])["truncated"] for i in range(4)] == [False, False, True, False]
    assert (work.truncated, work.blank) == (1, 1)
    assert "in.txt:3: 71 tokens > 70, truncated" in capsys.readouterr().err
