"""The pages in headless Chromium: numbers equal the arrays, keyboard, screens, no requests.

Skipped where Chromium or Playwright is missing.
"""

import re

import numpy as np
import pytest

from seq2seq.runtime.errors import UserError
from seq2seq.scripts.attention_page import attention_html
from seq2seq.scripts.pages.attention_data import Example, attention_section
from seq2seq.scripts.pages.browser import chromium
from seq2seq.scripts.pages.run_records import read_records
from seq2seq.scripts.report import report_html
from seq2seq.scripts.screenshot import click, point_at
from tests.scripts.made_attention import SOURCE, TARGET, made_attention
from tests.scripts.made_run import REFERENCE, made_run

pytestmark = pytest.mark.slow

KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}


@pytest.fixture(scope="module")
def browser():
    try:
        with chromium() as started:
            yield started
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def arrays():
    return made_attention(2, 3, SOURCE, TARGET)


@pytest.fixture(scope="module")
def path(arrays, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "attention.html"
    html = attention_html("run", Example(arrays, "나는 </script> 밥", "größer <b>"))
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture
def open_page(browser):
    """Opens a page; asserts at the end that it logged no error and made no further request."""
    opened, problems, requests = [], [], []

    def open_page(path, width=1200, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        opened.append(path.as_uri())
        page.set_default_timeout(3000)
        return page

    yield open_page
    assert not problems
    assert [url for url in requests if url != "data:,"] == opened


def weights_of(arrays, kind):
    """The weights [layers, heads + 1, rows, columns] of a kind; the last head is the mean."""
    array = getattr(arrays, kind).astype(np.float64)
    return np.concatenate([array, array.mean(axis=1, keepdims=True)], axis=1)


def select(page, kind, layer, head):
    page.get_by_text(KINDS[kind], exact=True).click()
    name = f"head {head}" if head < 3 else "mean of the heads"
    page.get_by_role("button", name=f"layer {layer}, {name}", exact=True).click()
    assert page.locator("section h3").last.text_content() == f"Layer {layer}, {name}"


def shown(page):
    """(row piece, column piece, weight) that the page shows."""
    pieces = page.locator(".readout b").all_text_contents()
    return (*pieces, float(page.locator(".readout .weight").text_content()))


def check(reading, row, column, weight):
    assert reading[:2] == (row, column)
    assert abs(reading[2] - weight) <= 0.5e-4 + 1e-9


def test_the_map_shows_the_weight_under_the_pointer_for_every_kind_layer_and_head(
    open_page, arrays, path
):
    page = open_page(path)
    random = np.random.default_rng(0)
    axes = {
        "encoder": (SOURCE, SOURCE),
        "decoder": (TARGET, ["<s>", *TARGET[:-1]]),
        "cross": (TARGET, SOURCE),
    }
    for kind, (rows, columns) in axes.items():
        weights = weights_of(arrays, kind)
        for layer, head in np.ndindex(weights.shape[:2]):
            select(page, kind, layer, head)
            frame = page.locator(".stage .frame").bounding_box()
            row, column = random.integers(len(rows)), random.integers(len(columns))
            x = frame["x"] + frame["width"] * (column + 0.5) / len(columns)
            y = frame["y"] + frame["height"] * (row + 0.5) / len(rows)
            page.mouse.move(x, y)
            check(shown(page), rows[row], columns[column], weights[layer, head, row, column])


def test_the_arrow_keys_reach_every_cell_and_every_head(open_page, arrays, path):
    page = open_page(path)
    select(page, "cross", 0, 0)
    weights = weights_of(arrays, "cross")
    page.locator(".stage svg").focus()
    page.keyboard.press("ArrowRight")  # the first key selects the first cell
    for row, piece in enumerate(TARGET):
        for column in range(len(SOURCE)):
            check(shown(page), piece, SOURCE[column], weights[0, 0, row, column])
            page.keyboard.press("ArrowRight")
        check(shown(page), piece, SOURCE[-1], weights[0, 0, row, -1])  # the last column
        for _ in SOURCE:
            page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")
    page.get_by_role("button", pressed=True).focus()
    for key, layer, head in (("ArrowRight", 0, 1), ("ArrowDown", 1, 1), ("ArrowDown", 1, 1)):
        page.keyboard.press(key)
        check(shown(page), TARGET[-1], SOURCE[0], weights[layer, head, -1, 0])  # the same cell
    assert page.evaluate("document.activeElement.ariaLabel") == "layer 1, head 1"


def test_tab_reaches_both_choices_the_heads_and_the_drawing_with_a_visible_focus(open_page, path):
    page = open_page(path)
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName.toLowerCase()"))
        style = "getComputedStyle(document.activeElement.nextElementSibling)"
        target = style if reached[-1] == "input" else "getComputedStyle(document.activeElement)"
        assert page.evaluate(f"parseFloat({target}.outlineWidth)") >= 2
    assert reached == ["input", "input", "button", "svg"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")  # the next view
    assert page.locator(".stage .link").count()


def test_the_lines_show_all_weights_of_a_piece(open_page, arrays, path):
    page = open_page(path)
    select(page, "cross", 1, 3)
    page.get_by_text("Lines", exact=True).click()
    weights = weights_of(arrays, "cross")[1, 3]
    labels = page.locator(".stage .label")
    expected = {TARGET[3]: weights[3], SOURCE[1]: weights[:, 1]}
    for piece, row in expected.items():
        labels.get_by_text(piece, exact=True).hover()
        values = page.locator(".stage .value").all_text_contents()
        np.testing.assert_allclose([float(value) for value in values if value], row, atol=0.5001e-4)
        assert page.locator(".stage .link:not(.other)").count() == (row >= 0.005).sum()
    best = int(weights[:, 1].argmax())
    check(shown(page), TARGET[best], SOURCE[1], weights[best, 1])
    page.locator(".stage svg").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    check(shown(page), TARGET[0], SOURCE[weights[0].argmax()], weights[0].max())


def test_the_shades_are_the_square_roots_of_the_weights(open_page, arrays, path):
    """The cells of the large map, read back from its paths."""
    page = open_page(path)
    select(page, "encoder", 1, 2)
    size = page.locator(".stage .cursor").get_attribute("width")
    drawn = np.zeros((len(SOURCE), len(SOURCE)))
    for path_ in page.locator(".stage .cells path").all():
        for x, y in re.findall(r"M(\d+) (\d+)", path_.get_attribute("d")):
            cell = int(y) // int(size), int(x) // int(size)
            drawn[cell] = float(path_.get_attribute("fill-opacity")) ** 2
    np.testing.assert_allclose(drawn, arrays.encoder[1, 2], atol=0.011)


def test_texts_with_markup_are_shown_as_they_are(open_page, path):
    page = open_page(path)
    assert page.locator(".texts dd").all_text_contents() == ["나는 </script> 밥", "größer <b>"]
    assert page.locator(".stage .label").all_text_contents() == [*TARGET, *SOURCE]


def luminance(color):
    """The relative luminance of "rgb(r, g, b)" (WCAG 2)."""
    values = np.array([float(number) for number in re.findall(r"[\d.]+", color)[:3]]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


CONTRASTS = """elements => elements.map(element => {
  const style = getComputedStyle(element), is_svg = element.namespaceURI.endsWith("svg");
  const background = (one) => getComputedStyle(one).backgroundColor;
  let behind = element;
  while (background(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [is_svg ? style.fill : style.color, background(behind)];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_a_contrast_of_at_least_four_and_a_half(open_page, path, scheme):
    page = open_page(path, scheme=scheme)
    page.locator(".stage svg").focus()
    page.keyboard.press("ArrowRight")
    texts = page.locator("h1, h3, dt, dd, p, .choice span, .name, .legend li, .readout *, text")
    pairs = texts.evaluate_all(CONTRASTS)
    assert len(pairs) > 30
    for pair in pairs:
        low, high = sorted(map(luminance, pair))
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair
    dark = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.2
    assert dark == (scheme == "dark")


BOXES = """all => all.map(one => one.getBoundingClientRect()).map(
  box => [box.left, box.top, box.right, box.bottom])"""


@pytest.mark.parametrize("view", ["Map", "Lines"])
def test_a_narrow_screen_scrolls_inside_the_drawing_which_has_all_texts(open_page, path, view):
    page = open_page(path, width=360)
    page.get_by_text(view, exact=True).click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator(".stage svg").focus()
    for key in ("ArrowRight", "ArrowLeft"):  # the values of the lines are on the other side
        page.keyboard.press(key)
        boxes = page.locator(".stage svg, .stage text:not(:empty)").evaluate_all(BOXES)
        stage, *texts = np.array(boxes)
        assert len(texts) >= len(SOURCE) + len(TARGET)
        assert (texts >= stage - 1)[:, :2].all() and (texts <= stage + 1)[:, 2:].all()


@pytest.fixture(scope="module")
def report(arrays, tmp_path_factory):
    """A report of two runs, each with the same attention weights."""
    path = tmp_path_factory.mktemp("report")
    runs = [read_records(made_run(path / name, scale)) for name, scale in (("a", 3), ("b", 6))]
    attention = attention_section(Example(arrays, "source", "target")) * 2
    (path / "report.html").write_text(report_html(runs, attention), encoding="utf-8")
    return path / "report.html"


def test_the_report_shows_tables_curves_samples_and_attention_of_both_runs(
    open_page, arrays, report
):
    page = open_page(report)
    page.get_by_role("link", name="Curves").click()
    charts = page.get_by_role("img", name="over the steps")
    assert charts.count() == 4
    for chart in charts.all():
        box = chart.locator("svg").bounding_box()
        assert box["width"] > 300 and 0.3 < box["height"] / box["width"] < 0.8
    label = charts.first.get_attribute("aria-label")
    assert "a, training: 0.5" in label and "b, validation: 2" in label  # 3 / 6, 6 / 6 + 1
    assert page.get_by_role("row", name=f"a · 6 {REFERENCE} = reference").first.is_visible()
    assert not page.get_by_text("model.attention_bias").first.is_visible()
    page.get_by_text("All fields").click()
    assert page.get_by_text("model.attention_bias").first.is_visible()
    second = page.locator(".attention").nth(1)
    second.get_by_text("Encoder self-attention").click()
    second.get_by_role("button", name="layer 0, head 2").click()
    second.locator(".stage svg").focus()
    page.keyboard.press("ArrowDown")
    weight = float(second.locator(".weight").text_content())
    assert abs(weight - arrays.encoder[0, 2, 0, 0]) <= 0.5e-4 + 1e-9
    assert page.locator(".attention").first.locator("h3").last.text_content().startswith("Layer 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_legible_on_a_narrow_screen(open_page, report, scheme):
    page = open_page(report, width=360, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    texts = page.locator("h1, h2, h3, p, a, th, td, small, .same, pre, summary, .legend li")
    for pair in texts.evaluate_all(CONTRASTS):
        low, high = sorted(map(luminance, pair))
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair


def test_a_screenshot_points_at_a_cell_of_the_first_of_two_maps(open_page, arrays, report):
    page = open_page(report)
    click(page, "layer 1, head 2")
    point_at(page, [3, 5])
    first = page.locator(".attention").first
    assert first.locator(".readout b").all_text_contents() == [TARGET[3], SOURCE[5]]
    weight = float(first.locator(".weight").text_content())
    assert abs(weight - arrays.cross[1, 2, 3, 5]) <= 0.5e-4 + 1e-9


def test_a_screenshot_of_a_missing_element_is_refused(open_page, path):
    page = open_page(path)
    with pytest.raises(UserError, match="--click is invalid: .*, got 'layer 9, head 9'; "):
        click(page, "layer 9, head 9")
    last = [len(TARGET) - 1, len(SOURCE) - 1]
    point_at(page, last)
    for cell in ([last[0] + 1, 0], [0, last[1] + 1]):
        with pytest.raises(UserError, match="--point is invalid: .* of 5 rows and 7 columns, got"):
            point_at(page, cell)
    click(page, "Lines")
    with pytest.raises(UserError, match="--point is invalid: expected a page with a map, got 0,0"):
        point_at(page, [0, 0])
