"""attention_page.py: stored weights, escaped text, size, arrays and errors. No browser."""

import base64
import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from seq2seq.config.tree import load_config, save_config
from seq2seq.decoding.translator import Translator
from seq2seq.scripts import attention_page
from seq2seq.scripts.attention_page import attention_html
from seq2seq.scripts.pages.attention_data import Example, attention_section, load_example, view_data
from seq2seq.scripts.pages.template import json_element
from tests.scripts.made_attention import SOURCE, TARGET, made_attention
from tests.support.forked import call_forked
from tests.support.in_process import call_in_process, with_defaults
from tests.support.tiny import write_run

ROOT = Path(__file__).parents[2]


class Elements(HTMLParser):
    """The elements of a page and the text of each script element."""

    def __init__(self, page: str):
        super().__init__()
        self.names, self.scripts, self.links, self._open = [], [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1] += data


def test_stored_weights_are_the_arrays_and_their_means_to_four_decimals():
    attention = made_attention(3, 2, SOURCE, TARGET)
    for kind in view_data(Example(attention, "a", "b"))["kinds"]:
        array = getattr(attention, kind["name"]).astype(np.float64)
        stored = np.frombuffer(base64.b64decode(kind["weights"]), "<u2") / 10_000
        layers, heads, rows, columns = array.shape
        assert (kind["layers"], kind["heads"]) == (layers, heads) == (3, 2)
        assert (len(kind["rows"]), len(kind["columns"])) == (rows, columns)
        stored = stored.reshape(layers, heads + 1, rows, columns)
        assert np.abs(stored[:, :heads] - array).max() <= 0.5e-4 + 1e-12
        assert np.abs(stored[:, heads] - array.mean(axis=1)).max() <= 0.5e-4 + 1e-12


def test_the_keys_of_the_decoder_are_the_start_token_and_the_pieces_before():
    kinds = view_data(Example(made_attention(1, 1, SOURCE, TARGET), "", ""))["kinds"]
    axes = {kind["name"]: (kind["rows"], kind["columns"]) for kind in kinds}
    assert axes["encoder"] == (SOURCE, SOURCE) and axes["cross"] == (TARGET, SOURCE)
    assert axes["decoder"] == (TARGET, ["<s>", *TARGET[:-1]])


@pytest.mark.parametrize("value", ["</script>", "<!--", "\u2028\u2029", "a\\\"'&", "\ud800", "밥ß"])
def test_embedded_data_is_one_script_element_with_the_same_value(value):
    html = json_element({"key": [value]}, "kind")
    elements = Elements(html)
    assert elements.names == ["script"] and html.count("<") == 2
    assert not set("\u2028\u2029") & set(html)
    expected = value.replace("\ud800", "\ufffd")
    assert json.loads(elements.scripts[0]) == {"key": [expected]}
    html.encode("utf-8")


def test_a_page_shows_markup_in_texts_as_text_and_loads_nothing():
    attention, hostile = (
        made_attention(2, 2, SOURCE, TARGET),
        "</title><script>x</script><img src=y>",
    )
    usual = Elements(attention_html("run", Example(attention, "source", "target")))
    elements = Elements(attention_html(hostile, Example(attention, hostile, hostile)))
    assert elements.names == usual.names and elements.links == ["data:,"]
    assert json.loads(elements.scripts[0])["kinds"][0]["rows"] == SOURCE


def test_a_page_of_30_pieces_with_6_layers_and_8_heads_has_less_than_1_mb():
    pieces = [*["▁국제연합교육과학문화기구"] * 30, "</s>"]
    page = attention_html("run", Example(made_attention(6, 8, pieces, pieces), "a", "b"))
    assert len(page.encode()) < 1_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("attention") / "run"
    write_run(path)
    return path


@pytest.fixture(scope="module")
def translator(run):
    return Translator.load(run)


@pytest.fixture
def shared(run, translator, monkeypatch):
    """Pages of `run` share the programs of its translator in this process."""

    def load(directory, checkpoint, source_language, target_language, nbest, samples, mbr):
        assert (directory, checkpoint, nbest, samples, mbr) == (run, "best", 1, 0, "")
        assert source_language == target_language == ""
        return translator

    monkeypatch.setattr(Translator, "load", load)


@pytest.mark.usefixtures("shared")
def test_the_command_writes_a_page_and_the_arrays_of_the_translator(
    run, translator, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    page, arrays, source = tmp_path / "attention.html", tmp_path / "arrays.npz", "eins zwei drei"
    flags = [f"--workdir={run}", f"--source={source}"]
    done = call_in_process(attention_page, *flags, f"--npz={arrays}")
    assert done.code == 0, done.err
    attention = translator.attention(source)
    with np.load(arrays, allow_pickle=False) as stored:
        assert set(stored) == set(attention._fields)
        for name in ("encoder", "decoder", "cross"):
            np.testing.assert_allclose(stored[name], getattr(attention, name), atol=1e-6)
        assert stored["source"].tolist() == attention.source == ["eins", "zwei", "drei", "</s>"]
        assert stored["target"].tolist() == attention.target
        assert stored["encoder"].shape == (1, 2, 4, 4)
        assert stored["decoder"].shape == (1, 2, len(attention.target), len(attention.target))
        assert stored["cross"].shape == (1, 2, len(attention.target), 4)
        assert stored["source"].shape == (4,) and stored["target"].shape == (len(attention.target),)
    data = json.loads(Elements(page.read_text(encoding="utf-8")).scripts[0])
    assert [data["source"], data["target"]] == [source, *translator.translate([source])]
    assert call_in_process(attention_page, *flags).code == 6  # the page exists


@pytest.mark.usefixtures("shared")
def test_a_page_states_which_texts_are_truncated(run):
    long = "eins " * 100
    assert load_example(run, "best", "eins zwei", "vier").truncated == ()
    assert load_example(run, "best", long, None).truncated == ("source",)
    example = load_example(run, "best", "eins", long)
    assert "<dt>source</dt>" in attention_section(example)
    assert "<dt>target (truncated)</dt>" in attention_section(example)
    full = " ".join(["eins"] * (len(example.attention.target) - 1))  # with the end token
    assert load_example(run, "best", full, full).truncated == ()


def test_the_tokens_around_a_text_count_when_it_is_truncated(run, tmp_path, monkeypatch):
    path = tmp_path / "run"
    shutil.copytree(run, path)
    config = load_config(path / "config.json")
    config = replace(config, data=replace(config.data, source_begin="<unk>"))
    save_config(config, path / "config.json")
    attention = made_attention(1, 1, SOURCE, TARGET)
    monkeypatch.setattr(Translator, "attention", lambda *arguments: attention)
    room = Translator.load(path).engine.buckets[-1] - 1  # without the end token
    for words, truncated in ((room, ("source",)), (room - 1, ())):
        assert load_example(path, "best", "eins " * words, "vier").truncated == truncated


@pytest.mark.slow
def test_the_command_takes_a_given_target_and_replaces_a_page(run, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("old")
    flags = [f"--workdir={run}", "--source=eins", f"--output={page}", "--overwrite"]
    script = ROOT / "scripts" / "attention_page.py"
    assert call_forked([script, *flags, "--target=vier fünf"]).code == 0
    data = json.loads(Elements(page.read_text(encoding="utf-8")).scripts[0])
    assert data["target"] == "vier fünf"
    assert data["kinds"][2]["rows"] == ["vier", "fünf", "</s>"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--source= "], 3, "--source is invalid: expected one sentence, got ' '"),
        (["--source=a\nb"], 3, "--source is invalid"),
        (["--source=a", "--target="], 3, "--target is invalid"),
        (["--source=\udcff"], 2, "--source is not UTF-8: expected text in UTF-8, got b'\\xff'"),
        (["--source=a", "--npz=a.npy"], 2, "--npz is invalid: expected FILE.npz, got 'a.npy'"),
        (["--source=a", "--output=./a.npz", "--npz=a.npz"], 6, "two outputs are the same file"),
        (["--source=a", "--output=/nowhere/a.html"], 6, "cannot write /nowhere/a.html"),
        (["--source=a", "--workdir=nowhere"], 4, "nowhere"),
    ],
)
def test_wrong_flags_are_one_line(flags, code, message, tmp_path):
    flags = with_defaults(flags, output=tmp_path / "a.html", workdir="none")
    done = call_in_process(attention_page, *flags)
    assert done.code == code and len(done.err) == 1 and message in done.err[0], done.err
    assert not list(tmp_path.iterdir())
