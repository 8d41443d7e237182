"""Formats of a decoding job: nothing of a line is lost, nothing of it is taken for another."""

import json

import pytest

from decoding.formats import (
    FORMATS,
    Hypothesis,
    Item,
    parsed,
    rendered,
    with_alignment,
    with_scores,
)
from runtime.errors import DATA, UserError

TEXTS = ["", "a b", "tab\there", 'quote " and \\', "three ||| bars", "\u2028 שלום 🙂"]
FOUND = [Hypothesis("x ||| y", -0.5, -1.5, 4), Hypothesis("z", -1.25, -2.5, 2)]


def one(form, line, with_target=False):
    return parsed(form, line, "file:7", with_target)


@pytest.mark.parametrize("text", TEXTS)
def test_a_line_of_text_is_the_sentence(text):
    for form in ("text", "moses"):
        assert one(form, text).text == text
    assert one("jsonl", json.dumps({"text": text, "id": 3})).text == text


def test_columns_are_passed_through_and_the_second_is_a_translation():
    item = one("tsv", "ein Satz\ta sentence\tmore")
    assert (item.text, item.target) == ("ein Satz", "a sentence")
    assert rendered("tsv", 0, item, FOUND[1:], False, False) == "ein Satz\ta sentence\tmore\tz"
    assert one("tsv", "alone").target == ""
    with_tab = [Hypothesis("b\tc", 0.0)]
    assert rendered("tsv", 0, one("tsv", "a"), with_tab, False, False).split("\t") == ["a", "b c"]


def test_json_keeps_its_fields_and_gets_more():
    fields = {"text": "ein\nSatz", "id": [1, {"deep": None}], "prefix": "a", "ä": "ö"}
    item = one("jsonl", json.dumps(fields))
    assert (item.text, item.prefix) == ("ein\nSatz", "a")
    out = rendered("jsonl", 5, item, FOUND, True, True)
    assert "\n" not in out
    assert json.loads(out) == fields | {
        "translation": "x ||| y",
        "score": -0.5,
        "truncated": True,
        "nbest": [{"translation": "x ||| y", "score": -0.5}, {"translation": "z", "score": -1.25}],
    }
    assert "nbest" not in json.loads(rendered("jsonl", 5, item, FOUND[:1], False, False))
    (alone,) = json.loads(rendered("jsonl", 5, item, FOUND[1:], False, True))["nbest"]
    assert alone == {"translation": "z", "score": -1.25}  # as many fields as its neighbours
    again = one("jsonl", out, True)  # what was translated can be scored as it is
    assert again.target == "x ||| y"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"txt": "a"}',
        '{"text": 1}',
        '{"text": NaN}',
        '"text"',
        '{"text": "a", "prefix": 1.5}',
        '{"text": "a", "prefix": 2}',
        '{"text": "a", "target": []}',
        '{"text": "a", "translation": {"de": "b"}}',
        '{"text": "a"}',
    ],
)
def test_json_that_is_not_as_expected_is_refused_with_its_place(line):
    """A translation to score is expected where one is to be scored, and nowhere else."""
    with pytest.raises(UserError, match="^file:7: ") as caught:
        one("jsonl", line, True)
    assert caught.value.code == DATA
    if "prefix" in line or '"text": "a"' not in line:
        with pytest.raises(UserError, match="^file:7: "):
            one("jsonl", line)
    else:
        assert one("jsonl", line).text == "a"


def test_a_line_without_a_translation_is_not_scored_as_the_empty_one():
    with pytest.raises(UserError, match="^file:7: no second column"):
        one("tsv", "alone", True)
    assert one("tsv", "two\tcolumns", True).target == "columns"
    assert one("tsv", "", True).target == one("jsonl", " ", True).target == ""


def test_halves_of_surrogate_pairs_are_no_text_but_pass_through():
    item = one("jsonl", r'{"text": "a \ud83d", "id": "\udc00", "target": "\ud83d"}', True)
    assert (item.text, item.target) == ("a \ufffd", "\ufffd")
    out = rendered("jsonl", 0, item, FOUND, False, True)
    assert json.loads(out.encode().decode())["id"] == "\udc00"


def test_json_has_no_infinite_scores():
    """Of what the rules leave no translation for, or would never let a search say."""
    item, never = one("jsonl", '{"text": "a", "target": "b"}', True), float("-inf")
    outs = [
        rendered("jsonl", 0, item, [Hypothesis("", never)], False, False),
        with_scores("jsonl", item, never, {"log_probs": [-1.0, never]}),
    ]
    found = [json.loads(out, parse_constant=pytest.fail) for out in outs]
    assert [one["score"] for one in found] == [None, None]
    assert found[1]["log_probs"] == [-1.0, None]


def test_a_blank_line_can_be_scored_against_a_file():
    item = Item("", " ", target="b")
    assert json.loads(with_scores("jsonl", item, -1.5, {"log_probs": []}))["score"] == -1.5
    assert json.loads(with_alignment("jsonl", item, []))["alignment"] == []


def test_moses_lines_have_four_fields_whatever_the_text():
    """id ||| text ||| features as "name= value" ||| total, as Moses' own n-best lists."""
    lines = rendered("moses", 11, one("moses", "a"), FOUND, False, True).split("\n")
    assert [line.split(" ||| ") for line in lines] == [
        ["11", "x &#124;&#124;&#124; y", "LogProb= -1.500000 Length= 4", "-0.500000"],
        ["11", "z", "LogProb= -2.500000 Length= 2", "-1.250000"],
    ]


NUMBERS = [
    "1e400",
    "-1E+400",
    "1.0",
    "1",
    "-0",
    "-0.0",
    "0.10",
    "1234567890" * 500,
    "NaN",
    "-Infinity",
]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:12])
def test_json_numbers_keep_their_text(number):
    inside = f'[{number}, {{"1e400": {number}}}]'
    line = f'{{"n": {number}, "text": "1e400 \\"{{,}}\\"", "in":{inside} ,"translation": 1}}'
    out = rendered("jsonl", 0, one("jsonl", line), FOUND, False, False)
    assert out.startswith(
        f'{{"n": {number}, "text": "1e400 \\"{{,}}\\"", "in": {inside}, '
        '"translation": "x ||| y", "score": '
    )


def test_json_of_any_spacing_keeps_its_values():
    fields = {"text": "a", "x": [1, {"y": None}], "": {}, "z": "\u2028", "text2": False}
    for line in (
        json.dumps(fields),
        json.dumps(fields, separators=(" ,\t", "  :\r")),
        f"  {json.dumps(fields, separators=(',', ':'), ensure_ascii=False)}\t",
    ):
        out = json.loads(with_scores("jsonl", one("jsonl", line), 0.5, {}))
        assert out == fields | {"score": 0.5}


def test_a_blank_line_stays_one_line_in_every_format():
    blank = [Hypothesis("", 0.0)]
    for form in FORMATS:
        assert rendered(form, 0, one(form, " "), blank, False, False).count("\n") == 0
    for form in ("text", "jsonl", "tsv"):
        assert rendered(form, 0, one(form, ""), blank, False, False) == ""


def test_scores_and_links_come_as_numbers_or_fields():
    item = one("jsonl", '{"text": "a", "target": "b"}')
    assert json.loads(with_scores("jsonl", item, -0.25, {"log_prob": -1.0})) == {
        "text": "a",
        "target": "b",
        "score": -0.25,
        "log_prob": -1.0,
    }
    assert with_scores("tsv", one("tsv", "a\tb"), -0.25, {}) == "a\tb\t-0.250000"
    assert with_scores("text", one("text", "a"), -0.25, {}) == "-0.250000"
    assert with_alignment("text", one("text", "a"), [(0, 0), (2, 1)]) == "0-0 2-1"
    assert json.loads(with_alignment("jsonl", item, [(2, 1)]))["alignment"] == [[2, 1]]
