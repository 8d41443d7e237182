"""The position of invalid UTF-8 is reported as file, line and column, for one file and two."""

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.collector import PairCollector
from seq2seq.runtime.errors import DATA, UserError


@pytest.mark.parametrize(
    "names, source, target, place",
    [
        (("a.tsv", "a.tsv"), "äbc".encode(), b"gh\xff", "byte 0xff in column 7 of a.tsv:7"),
        (("a.tsv", "a.tsv"), b"\xfd", b"gh\xff", "byte 0xfd in column 1 of a.tsv:7"),
        (("a.tsv", "a.tsv"), "ä".encode() + b"\xfe", b"gh", "byte 0xfe in column 2 of a.tsv:7"),
        (("a.de", "a.en"), "äbc".encode(), b"gh\xff", "byte 0xff in column 3 of a.en:7"),
        (("a.de", "a.en"), b"\x80", b"gh", "byte 0x80 in column 1 of a.de:7"),
    ],
)
def test_the_column_counts_characters_of_the_line_in_its_file(names, source, target, place):
    """The two sides of a tab-separated file share a line."""
    pairs = PairCollector(names, DataConfig())
    pairs.add(7, source, target)
    with pytest.raises(UserError) as refused:
        pairs.collected().counts.check(names)
    assert refused.value.code == DATA
    assert str(refused.value).startswith(f"1 invalid line: expected UTF-8, got {place};")
