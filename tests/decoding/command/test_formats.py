"""Formats of a decoding job: every field of a line is kept, and none is misread."""

import json

import pytest

from seq2seq.decoding.command.formats import FORMATS, Formats, formats_of
from seq2seq.decoding.results import Hypothesis, Item, Scored, Translation
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError

TEXTS = ["", "a b", "tab\there", 'quote " and \\', "three ||| bars", "\u2028 שלום 🙂"]
HYPOTHESES = [Hypothesis("x ||| y", -0.5, -1.5, 4), Hypothesis("z", -1.25, -2.5, 2)]


def parse(name, line, needs_target=False):
    return FORMATS[name].parse(line, "file:7", needs_target)


def render(name, number, item, hypotheses, truncated, nbest):
    translation = Translation(hypotheses, 5, 4 if truncated else 5, ("{", "}"), ("\u00ad",))
    return FORMATS[name].render(number, item, translation, nbest)


def result(score=0.0, log_prob=-1.0, log_probs=(), links=()):
    return Scored(log_prob, score, ["b", "</s>"], list(log_probs), list(links), ["a", "</s>"])


def render_score(name, item, score, truncated=False, **fields):
    translation = Translation([], 5, 4 if truncated else 5)
    return FORMATS[name].render_score(item, result(score, **fields), translation)


def render_alignment(name, item, links):
    return FORMATS[name].render_alignment(item, result(links=links))


@pytest.mark.parametrize("text", TEXTS)
def test_a_line_of_text_is_the_sentence(text):
    for name in ("text", "moses"):
        assert parse(name, text).text == text
    assert parse("jsonl", json.dumps({"text": text, "id": 3})).text == text


def test_columns_are_copied_and_the_second_is_a_translation():
    item = parse("tsv", "ein Satz\ta sentence\tmore")
    assert (item.text, item.target) == ("ein Satz", "a sentence")
    assert render("tsv", 0, item, HYPOTHESES[1:], False, False) == "ein Satz\ta sentence\tmore\tz"
    assert parse("tsv", "single").target is None
    with_tab = [Hypothesis("b\tc", 0.0)]
    assert render("tsv", 0, parse("tsv", "a"), with_tab, False, False).split("\t") == ["a", "b c"]


def test_json_keeps_its_fields_and_gets_more():
    fields = {"text": "ein\nSatz", "id": [1, {"deep": None}], "prefix": "a", "ä": "ö"}
    item = parse("jsonl", json.dumps(fields))
    assert (item.text, item.prefix) == ("ein\nSatz", "a")
    out = render("jsonl", 5, item, HYPOTHESES, True, True)
    assert "\n" not in out
    assert json.loads(out) == fields | {
        "translation": "x ||| y",
        "score": -0.5,
        "truncated": True,
        "unknown": ["{", "}"],
        "replaced": ["\u00ad"],
        "nbest": [{"translation": "x ||| y", "score": -0.5}, {"translation": "z", "score": -1.25}],
    }
    assert "nbest" not in json.loads(render("jsonl", 5, item, HYPOTHESES[:1], False, False))
    (single,) = json.loads(render("jsonl", 5, item, HYPOTHESES[1:], False, True))["nbest"]
    assert single == {"translation": "z", "score": -1.25}  # nbest is a list also of one translation
    again = parse("jsonl", out, True)  # the output of a translation can be scored
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
def test_malformed_json_is_refused_with_its_place(line):
    """A translation is required only if it is to be scored."""
    with pytest.raises(UserError, match="^file:7: ") as caught:
        parse("jsonl", line, True)
    assert caught.value.code == DATA
    if "prefix" in line or '"text": "a"' not in line:
        with pytest.raises(UserError, match="^file:7: "):
            parse("jsonl", line)
    else:
        assert parse("jsonl", line).text == "a"


def test_a_line_without_a_translation_is_refused_and_not_scored_as_empty():
    with pytest.raises(UserError, match="^file:7: no second column"):
        parse("tsv", "single", True)
    assert parse("tsv", "two\tcolumns", True).target == "columns"
    assert parse("tsv", "", True).target is parse("jsonl", " ", True).target is None


def test_lone_surrogates_are_replaced_in_texts_and_copied_in_other_fields():
    item = parse("jsonl", r'{"text": "a \ud83d", "id": "\udc00", "target": "\ud83d"}', True)
    assert (item.text, item.target) == ("a \ufffd", "\ufffd")
    out = render("jsonl", 0, item, HYPOTHESES, False, True)
    assert json.loads(out.encode().decode())["id"] == "\udc00"


def test_infinite_scores_are_null_in_json():
    """If no hypothesis satisfies the search rules, or a scored translation violates them."""
    item, impossible = parse("jsonl", '{"text": "a", "target": "b"}', True), float("-inf")
    outs = [
        render("jsonl", 0, item, [Hypothesis("", impossible)], False, False),
        render_score("jsonl", item, impossible, log_probs=[-1.0, impossible]),
    ]
    objects = [json.loads(out, parse_constant=pytest.fail) for out in outs]
    assert [entry["score"] for entry in objects] == [None, None]
    assert objects[1]["log_probs"] == [-1.0, None]


def test_a_blank_line_can_be_scored_against_a_file():
    item = Item("", " ", target="b")
    assert json.loads(render_score("jsonl", item, -1.5))["score"] == -1.5
    assert json.loads(render_alignment("jsonl", item, []))["alignment"] == []


def test_moses_lines_have_four_fields_for_any_text():
    """id ||| text ||| features as "name= value" ||| total, as in the n-best lists of Moses."""
    lines = render("moses", 11, parse("moses", "a"), HYPOTHESES, False, True).split("\n")
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
    out = render("jsonl", 0, parse("jsonl", line), HYPOTHESES, False, False)
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
        out = json.loads(render_score("jsonl", parse("jsonl", line), 0.5))
        added = {"score", "log_prob", "tokens", "log_probs", "truncated", "unknown", "replaced"}
        assert {name: out[name] for name in set(out) - added} == fields and out["score"] == 0.5


def test_a_blank_line_stays_one_line_in_every_format():
    blank = [Hypothesis("", 0.0)]
    for name in FORMATS:
        assert render(name, 0, parse(name, " "), blank, False, False).count("\n") == 0
    for name in ("text", "jsonl", "tsv"):
        assert render(name, 0, parse(name, ""), blank, False, False) == ""


def test_scores_and_links_come_as_numbers_or_fields():
    item = parse("jsonl", '{"text": "a", "target": "b"}')
    assert list(json.loads(render_score("jsonl", item, -0.25, True, log_probs=[-0.5])).items()) == [
        ("text", "a"),
        ("target", "b"),
        ("score", -0.25),
        ("log_prob", -1.0),
        ("tokens", ["b", "</s>"]),
        ("log_probs", [-0.5]),
        ("truncated", True),
        ("unknown", []),
        ("replaced", []),
    ]
    assert render_score("tsv", parse("tsv", "a\tb"), -0.25) == "a\tb\t-0.250000"
    assert render_score("text", parse("text", "a"), -0.25) == "-0.250000"
    assert render_alignment("text", parse("text", "a"), [(0, 0), (2, 1)]) == "0-0 2-1"
    assert json.loads(render_alignment("jsonl", item, [(2, 1)]))["alignment"] == [[2, 1]]


def test_the_error_for_an_object_without_a_text_names_its_fields():
    for line, fields in (
        ('{"txt": "a", "id": 1, "a\\nb": 2}', '"txt", "id", "a\\nb"'),
        (json.dumps({f"f{i}": i for i in range(20)}), ", ".join(f'"f{i}"' for i in range(10))),
        ("{}", "no fields"),
    ):
        with pytest.raises(UserError) as caught:
            parse("jsonl", line)
        expected = f'file:7: no "text": expected a field "text" with a string, got {fields}; add'
        assert str(caught.value).startswith(expected)
    with pytest.raises(
        UserError, match='no "target" or "translation".*, got "text", "prefix"; add'
    ):
        parse("jsonl", '{"text": "a", "prefix": "b"}', True)


def test_a_target_that_is_null_is_absent_if_there_is_a_translation():
    line = '{"target": null, "text": "a", "translation": "b"}'
    assert parse("jsonl", line, True).target == "b"


def test_the_error_for_a_value_that_is_not_a_string_names_its_type():
    values = {"null": "null", "true": "a boolean", "-1e9": "a number", "NaN": "a number",
              "[1]": "an array", "{}": "an object"}  # fmt: skip
    for value, kind in values.items():
        for name in ("text", "target", "translation"):
            line = (
                f'{{"{name}": {value}, "text": "a"}}' if name != "text" else f'{{"text": {value}}}'
            )
            with pytest.raises(
                UserError, match=f'^file:7: "{name}": expected a string, got {kind}$'
            ):
                parse("jsonl", line, True)
        if value == "null":
            assert parse("jsonl", '{"text": "a", "prefix": null}').prefix is None
        else:
            with pytest.raises(UserError, match=f'"prefix": expected a string, got {kind}$'):
                parse("jsonl", f'{{"text": "a", "prefix": {value}}}')
        if value != "{}":
            with pytest.raises(UserError, match=f"^file:7: expected a JSON object, got {kind}$"):
                parse("jsonl", value)


# Different formats of input and output.

SIDES = {
    "text": "a  b",
    "tsv": "a  b\tc\td",
    "jsonl": '{"id": 7, "text": "a  b", "target": "c"}',
}  # the same pair, in formats that can hold it


def test_input_and_output_formats_default_to_the_format_of_both():
    text, tsv, jsonl, moses = (FORMATS[name] for name in ("text", "tsv", "jsonl", "moses"))
    assert formats_of("jsonl") == (jsonl, jsonl)
    assert formats_of("text:jsonl") == (text, jsonl)
    assert formats_of("jsonl:tsv") == (jsonl, tsv)
    assert formats_of("tsv:moses") == (tsv, moses)
    assert formats_of("moses") == (text, moses)  # moses is written only
    with pytest.raises(UserError, match="^--format=moses:text: moses is an output") as caught:
        formats_of("moses:text")
    assert caught.value.code == CONFIGURATION
    for flag in ("", "csv", "text:", ":text", "text:text:text", "TEXT"):
        with pytest.raises(UserError, match=f"^--format={flag} is unknown: expected FORMAT or"):
            formats_of(flag)


@pytest.mark.parametrize("input_format", SIDES)
@pytest.mark.parametrize("output_format", FORMATS)
def test_any_input_format_can_be_written_in_any_output_format(input_format, output_format):
    formats = formats_of(f"{input_format}:{output_format}")
    needs_target = formats.input.has_target
    item = formats.input.parse(SIDES[input_format], "file:7", needs_target)
    output_item = formats.output_item(item)
    assert output_item._replace(line="") == item._replace(line="")
    out = formats.output.render(3, output_item, Translation(HYPOTHESES[1:], 5, 5), False)
    if input_format == output_format:
        assert output_item is item
    elif output_format == "tsv":
        assert out.split("\t") == ["a  b", *(["c"] if needs_target else []), "z"]
    elif output_format == "jsonl":
        pair = {"text": "a  b"} | ({"target": "c"} if needs_target else {})
        results = {"translation": "z", "score": -1.25, "truncated": False}
        assert json.loads(out) == pair | results | {"unknown": [], "replaced": []}
    else:
        (alone,) = (parse("text", "a  b"),)
        assert out == render(output_format, 3, alone, HYPOTHESES[1:], False, False)
    if formats.output.can_score and needs_target:
        links = formats.output.render_alignment(output_item, result(links=[(2, 1)]))
        assert links.endswith({"jsonl": '"alignment": [[2, 1]]}'}.get(output_format, "2-1"))


def test_a_blank_translation_is_a_column_of_its_own():
    for name in ("tsv", "jsonl"):
        item = FORMATS["text"].parse("a", "file:7")._replace(target="")
        line = Formats(FORMATS["text"], FORMATS[name]).output_item(item).line
        assert line == {"tsv": "a\t", "jsonl": '{"text": "a", "target": ""}'}[name]


def test_separators_in_a_text_become_spaces_in_columns():
    item = parse("jsonl", json.dumps({"text": "a\tb\nc", "target": "\td\r\n"}), True)
    output_item = Formats(FORMATS["jsonl"], FORMATS["tsv"]).output_item(item)
    assert render_score("tsv", output_item, -1.0) == "a b c\t d  \t-1.000000"
    only_target = Formats(FORMATS["text"], FORMATS["tsv"]).output_item(Item("", "", target="b"))
    assert only_target.line == "\tb"


def test_a_blank_line_of_another_format_becomes_an_object_and_no_columns():
    for name, expected in (("tsv", ""), ("text", ""), ("jsonl", '{"text": ""}')):
        for blank in ("", '{"text": ""}'):
            input_format = FORMATS["jsonl"] if blank else FORMATS["text"]
            if input_format is FORMATS[name]:
                continue
            item = Formats(input_format, FORMATS[name]).output_item(
                input_format.parse(blank, "file:7")
            )
            assert FORMATS[name].render_unscored(item) == expected
            out = render(name, 0, item, [Hypothesis("", 0.0)], False, False)
            if name == "jsonl":
                assert json.loads(out)["translation"] == ""
            else:
                assert out == ""


def test_formats_support_what_they_declare():
    both_sides = {"tsv": "a\tb", "jsonl": '{"text": "a", "target": "b"}'}
    for name, text_format in FORMATS.items():
        assert text_format.name == name
        line = both_sides.get(name, "a\tb")
        assert (parse(name, line, name in both_sides).target == "b") == text_format.has_target
        written = render(name, 0, parse(name, line), HYPOTHESES, False, True)
        assert ("-1.25" in written) == text_format.has_nbest
    assert [name for name, text_format in FORMATS.items() if not text_format.can_score] == ["moses"]
    assert [name for name, text_format in FORMATS.items() if not text_format.can_read] == ["moses"]


def test_a_pair_of_blank_lines_has_no_score():
    blank = Item(" ", " ", target="")
    outputs = {
        name: text_format.render_unscored(blank)
        for name, text_format in FORMATS.items()
        if text_format.can_score
    }
    assert outputs == {"text": "", "tsv": " ", "jsonl": " "}
