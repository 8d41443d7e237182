"""Blocks of raw lines: all lines in order, and at most so many lines and bytes in a block."""

import random

import pytest

from seq2seq.data.corpora.blocks import blocks_of


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_blocks_have_all_rows_and_are_as_large_as_allowed(columns, seed, monkeypatch):
    choose = random.Random(seed)
    most_lines, most_bytes = choose.randint(1, 9), choose.randint(1, 40)
    monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_LINES", most_lines)
    monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_BYTES", most_bytes)
    rows = [tuple(b"x" * choose.randint(0, 9) for _ in range(columns)) for _ in range(97)]
    blocks = list(blocks_of(iter(rows), columns))
    block_rows = [list(zip(*block.columns, strict=True)) for block in blocks]
    assert [row for block in block_rows for row in block] == rows
    assert all(block.first <= block.last for block in blocks)
    assert [block.first for block in blocks[1:]] == [block.last + 1 for block in blocks[:-1]]
    for number, block in enumerate(block_rows):
        assert len(block) <= most_lines
        size = sum(len(line) for row in block for line in row)
        assert size <= most_bytes or len(block) == 1
        if number + 1 < len(block_rows):
            following = sum(map(len, block_rows[number + 1][0]))
            assert len(block) == most_lines or size + following > most_bytes


def test_no_rows_have_no_blocks():
    assert list(blocks_of(iter([]))) == []
