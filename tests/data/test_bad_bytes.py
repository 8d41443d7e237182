"""The position of invalid UTF-8 is reported as file, line and column, for one file and two."""

import pytest

from data.text_files import PairCollector
from runtime.errors import DATA, UserError


@pytest.mark.parametrize(
    "names, source, target, place",
    [
        (("a.tsv", "a.tsv"), "äbc".encode(), b"gh\xff", "a.tsv:7: byte 0xff at column 7"),
        (("a.tsv", "a.tsv"), "ä".encode() + b"\xfe", b"gh", "a.tsv:7: byte 0xfe at column 2"),
        (("a.de", "a.en"), "äbc".encode(), b"gh\xff", "a.en:7: byte 0xff at column 3"),
        (("a.de", "a.en"), b"\x80", b"gh", "a.de:7: byte 0x80 at column 1"),
    ],
)
def test_the_column_counts_characters_of_the_line_in_its_file(names, source, target, place):
    """The two sides of a tab-separated file share a line."""
    with pytest.raises(UserError) as refused:
        PairCollector(names, "error").add(7, source, target)
    assert refused.value.code == DATA
    assert str(refused.value).startswith(place + " is not UTF-8")
