"""report.py: records of run directories, tables, curves and errors. No browser, no model."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from seq2seq.runtime.errors import UserError
from seq2seq.scripts import report
from seq2seq.scripts.pages.curves import Curve, chart
from seq2seq.scripts.pages.report_sections import (
    config_section,
    evenly_spaced,
    runs_section,
    scores_section,
)
from seq2seq.scripts.pages.run_records import read_records
from seq2seq.scripts.report import attention_html, report_html, with_unique_names
from tests.scripts.made_run import REFERENCE, SIGNATURE, SOURCE, STEPS, loss_at, made_run
from tests.support.in_process import call_in_process

ROOT = Path(__file__).parents[2]


class Tables(HTMLParser):
    """The rows of the tables of a page as texts, and the ids of all elements."""

    def __init__(self, page: str):
        super().__init__()
        self.rows, self.ids, self.text, self._cell = [], [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data):
        self.text += data
        if self._cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    made_run(path / "one")
    made_run(path / "two", scale=6.0, learning_rate=0.5, num_steps=77)
    return [read_records(path / name) for name in ("one", "two")]


def test_the_series_of_a_metric_are_its_values_without_damaged_and_nonfinite_ones(runs):
    steps, values = runs[0].series("train_loss")[""]
    assert steps == list(STEPS)
    assert values == [loss_at(step, 3.0) for step in STEPS]
    assert runs[0].series("valid_bleu") == {"": ([2, 4, 6], [20.0, 40.0, 60.0])}
    assert runs[0].series("train_bleu") == {}


def test_the_languages_of_a_run_are_a_row_if_a_run_has_them(runs):
    def names(*records):
        return {first: rest for first, *rest in Tables(runs_section(records)).rows}

    assert "languages" not in names(*runs)
    config = runs[1].config | {"data.source_language": "eng_Latn", "data.target_language": "kor"}
    rows = names(runs[0], runs[1]._replace(config=config))
    assert rows["languages"] == ["–", "eng_Latn → kor"]


def test_the_series_of_several_validation_sets_have_their_names(tmp_path):
    path = made_run(tmp_path / "run")
    entry = {"step": 4, "news/valid_bleu": 5.0, "valid_2/valid_bleu": 6.0}
    (path / "metrics.jsonl").write_text(json.dumps(entry))
    run = read_records(path)
    assert run.series("valid_bleu") == {"news": ([4], [5.0]), "valid_2": ([4], [6.0])}
    assert run.best_scores() == {"news/bleu": 5.0, "valid_2/bleu": 6.0}


def test_the_data_report_is_that_of_the_last_start(runs):
    assert runs[0].start == [
        "train: 12 pairs kept, 3 dropped (3 too <long>)",
        "resumed at step 2",
        "devices: 1 × cpu (cpu)",
    ]


def test_only_a_line_feed_ends_a_line_of_the_log(tmp_path):
    path = made_run(tmp_path / "run")
    lines = ["run: here", "train: a.tsv\x85b\u2028c\x0c", "first step after 1 s"]
    (path / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert read_records(path).log == lines and read_records(path).start == lines[1:2]


def test_the_training_time_is_that_of_the_newest_checkpoint(tmp_path):
    """All sessions together; the log has the duration of the last one only."""
    path = made_run(tmp_path / "run")
    for step, seconds in ((4, 9.0), (10, 7325.0)):
        data = path / "checkpoints" / str(step) / "data"
        data.mkdir(parents=True)
        (data / "metadata").write_text(json.dumps({"seconds": seconds}))
    tables = Tables(runs_section([read_records(path)]))
    assert ["training time to the last checkpoint", "2:02:05"] in tables.rows
    (data / "metadata").write_text("{}")  # of an earlier version
    assert read_records(path).seconds is None


def test_the_best_scores_are_those_of_the_best_checkpoint(runs, tmp_path):
    assert runs[0].best_scores() == {"loss": loss_at(4, 3.0) + 1, "bleu": 40.0}
    path = made_run(tmp_path / "run")
    (path / "best.json").write_text('{"checkpoint": "average"}')
    with open(path / "metrics.jsonl", "a") as file:
        file.write('\n{"step": 6, "average_bleu": 1.5}\n')
    assert read_records(path).best_scores() == {"bleu": 1.5}
    (path / "best.json").unlink()
    assert read_records(path).best_scores() == {}


def test_samples_are_in_the_order_of_the_checkpoints(runs):
    samples = [(sample.checkpoint, sample.output) for sample in runs[0].samples]
    assert [name for name, _ in samples] == ["2", "4", "6", "average"]
    assert samples[0][1] == "output of 2 <b3.0>" and samples[2][1] == REFERENCE
    assert {(sample.source, sample.reference) for sample in runs[0].samples} == {
        (SOURCE, REFERENCE)
    }


def test_a_comparison_lists_the_fields_that_differ_and_no_others(runs):
    section = config_section(runs).split("<h3>Differences from the defaults</h3>")[0]
    rows = {row[0]: row[1:] for row in Tables(section).rows[1:]}
    assert rows == {
        "training.learning_rate": ["0.01", "0.5"],
        "training.num_steps": ["12", "77"],
    }
    assert "Differences between" not in config_section(runs[:1])


def test_the_page_of_a_comparison_has_scores_with_signatures_samples_and_data(runs):
    page = report_html(runs, "")
    tables = Tables(page)
    assert [f"BLEU{SIGNATURE}", "36.75", "73.50"] in tables.rows  # 12.25 × 3, × 6
    assert ["loss", f"{loss_at(4, 3.0) + 1:.4g}", f"{loss_at(4, 6.0) + 1:.4g}"] in tables.rows
    assert ["one · 6", f"{REFERENCE} = reference"] in tables.rows
    assert ["two · average", "output of average <b6.0>"] in tables.rows
    assert ["times resumed", "1", "1"] in tables.rows
    assert ["command"] + ["train.py --x=<y>"] * 2 in tables.rows
    assert ["training time to the last checkpoint", "–", "–"] in tables.rows
    assert "3 dropped (3 too <long>)" in tables.text and ["a<b", "f00"] in tables.rows
    assert len(tables.ids) == len(set(tables.ids))
    assert all(f'href="#{name}"' in page for name in ("runs", "scores", "curves", "config"))


def test_a_run_without_records_has_a_page(tmp_path):
    path = made_run(tmp_path / "run")
    for file in [*path.glob("*.json*"), *path.glob("samples/*"), path / "train.log"]:
        if file.name != "config.json":
            file.unlink()
    page = report_html([read_records(path)], "")
    for text in ("no scores.json", "No metrics yet", "No samples yet", "no log"):
        assert text in page


def test_a_page_states_why_a_run_has_no_scores(runs, tmp_path):
    path = made_run(tmp_path / "three")
    (path / "scores.json").write_text('{"checkpoint": "latest", "sets": {}}')
    page = Tables(scores_section([read_records(path)])).text
    assert "three: no held-out data." in page and "scores.json" not in page
    page = Tables(scores_section([runs[0], read_records(path), runs[1]._replace(scores={})]))
    assert "three: no held-out data." in page.text and "two: no scores.json," in page.text
    assert "one: no" not in page.text and [f"BLEU{SIGNATURE}", "36.75", "–", "–"] in page.rows


def test_a_run_whose_name_is_not_utf_8_has_a_page(runs):
    named = [runs[0]._replace(name="a\udcff"), runs[1]]
    assert "Comparison of a\ufffd and two" in report_html(named, "").encode().decode()


def points_of(page_svg: str, axis: str) -> np.ndarray:
    """The places of the points of each line with the colour of series 0, in units of the SVG."""
    tree = ElementTree.fromstring(page_svg)
    paths = [
        path.get("d")
        for path in tree.iter("{http://www.w3.org/2000/svg}path")
        if "stroke: var(--series-0)" in path.get("style", "") and "L" in path.get("d")
    ]
    pairs = re.findall(r"[ML] ([\d.]+) ([\d.]+)", paths[0])
    return np.array(pairs, float)[:, 0 if axis == "x" else 1]


def test_a_curve_is_a_linear_map_of_its_values_in_the_colours_of_the_page():
    steps, values = [1, 5, 7, 20], [3.0, 2.0, 2.5, -1.0]
    html = chart("name", "Loss <1>", "nats", [Curve("run", steps, values, 0, 0)])
    svg = html[html.index("<svg xmlns") if "<svg xmlns" in html else html.index("<svg ") :]
    svg = svg[: svg.index("</svg>") + 6]
    for axis, expected, sign in (("x", steps, 1), ("y", values, -1)):
        places = points_of(svg, axis)
        slope, offset = np.polyfit(expected, places, 1)
        np.testing.assert_allclose(places, np.array(expected) * slope + offset, atol=1e-3)
        assert slope * sign > 0
    assert not re.search(r"#[0-9a-f]{6}", svg) and "Loss &lt;1&gt;" in html
    assert "last values: run: -1" in html


def test_ids_of_two_drawings_differ():
    curves = [Curve("run", [1, 2], [1, 2], 0, 0)]
    first, second = (Tables(chart(name, "t", "", curves)).ids for name in ("a", "b"))
    assert first and not set(first) & set(second)


def test_runs_without_attention_or_a_checkpoint_have_no_attention_weights(runs):
    rnn = runs[1]._replace(config=runs[1].config | {"model.kind": "rnn"})
    section = attention_html([runs[0], rnn], None)
    assert Tables(section).text.split("\n")[:2] == ["two", "The model has no attention."]
    assert attention_html(runs[:1], None) == ""


def test_evenly_spaced_items_include_both_ends():
    assert evenly_spaced(range(3), 8) == [0, 1, 2]
    assert evenly_spaced(range(15), 8) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_runs_with_the_same_name_are_named_by_their_paths(tmp_path):
    paths = [made_run(tmp_path / parent / "run") for parent in ("a", "b")]
    runs = with_unique_names([read_records(path) for path in paths])
    assert [run.name for run in runs] == list(map(str, paths))


def test_a_directory_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run directory"):
        read_records(tmp_path)


def test_the_page_is_report_html_in_the_current_directory_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call_in_process(report, f"--workdir={made_run(tmp_path / 'one')}", "--noattention")
    assert done.code == 0 and done.err[0].startswith("report.html: ")
    assert "<h1>Report of one</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_command_writes_a_page_of_two_runs_without_a_model(tmp_path):
    paths = [made_run(tmp_path / name) for name in ("one", "two")]
    options = "--noattention", f"--output={tmp_path / 'a.html'}"
    workdirs = f"--workdir={paths[0]},{paths[1]}"
    done = call_in_process(report, *options, workdirs, devices=False)
    assert done.code == 0, done.err
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<h1>Comparison of one and two</h1>" in page
    for names, code, message in (
        (f"{paths[0]}", 6, "exists; set --overwrite"),
        (f"{paths[0]},{paths[0]}", 2, "--workdir is invalid: expected different run directories"),
        (f"{paths[0]},{paths[0]}/../one", 2, "--workdir is invalid"),
        (f"{paths[0]},", 2, "--workdir is invalid"),
        (f"{paths[0]} --source=a", 2, "--source has no effect with --attention=false"),
    ):
        done = call_in_process(report, *options, *f"--workdir={names}".split())
        assert done.code == code and len(done.err) == 1 and message in done.err[0], done.err
