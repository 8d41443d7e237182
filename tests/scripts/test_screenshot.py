"""screenshot.py: errors that need no browser. test_pages_in_browser.py has the others."""

import pytest

from seq2seq.scripts import screenshot
from tests.support.in_process import call_in_process, with_defaults


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--page=nowhere.html"], 3, "--page is invalid: expected an existing HTML file, got 'now"),
        (["--point=3"], 2, "--point is invalid: expected ROW,COLUMN, got '3'"),
        (["--point=a,b"], 2, "--point is invalid: expected ROW,COLUMN, got 'a,b'"),
        (["--point=1,-1"], 2, "--point is invalid"),
        (["--output=a.jpg"], 2, "--output is invalid: expected FILE.png, got 'a.jpg'"),
        (["--output=/nowhere/a.png"], 6, "cannot write /nowhere/a.png"),
        ([], 6, "a.png exists; set --overwrite"),
    ],
)
def test_wrong_flags_are_one_line(flags, code, message, tmp_path):
    page, output = tmp_path / "a.html", tmp_path / "a.png"
    page.write_text("<p>page</p>")
    output.write_text("earlier")
    done = call_in_process(screenshot, *with_defaults(flags, page=page, output=output))
    assert done.code == code and len(done.err) == 1 and message in done.err[0], done.err
    assert output.read_text() == "earlier"
