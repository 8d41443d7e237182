"""The sample for vocabularies: a small corpus whole, lines from all over a large one."""

import gzip
import random
from fractions import Fraction

import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import open_parts
from seq2seq.data.tokenizers import vocabulary_sample
from seq2seq.data.tokenizers.vocabulary_sample import PairSample, sample_texts
from seq2seq.runtime.errors import DATA, UserError

ROOT_5 = Fraction("2.23606797749978969640917366873127623544061835961152572427089")


def sampled(pairs, block, usable=lambda number: True, deduplicate=False, parts=1):
    """The texts of a sample of `pairs`, read in blocks of `block` lines. All parts are `pairs`."""
    chosen, decoded = PairSample(), 0
    for part in range(parts):
        for start in range(0, len(pairs), block):
            lines = pairs[start : start + block]
            index, positions = chosen.next_positions(len(lines))
            places = [k for k, i in enumerate(index) if usable(start + i)]
            decoded += len(index)
            texts = [lines[index[k]] for k in places]
            chosen.add(part, positions[places], [s for s, _ in texts], [t for _, t in texts])
    source, target = chosen.texts(deduplicate)
    return list(zip(source, target, strict=True)), decoded


def numbered(count):
    return [(f"s{i}", f"t{i}") for i in range(count)]


def below_the_share(lines, most):
    """Those of `lines` that belong to a sample of at most `most`."""
    share, ratio = Fraction(1), (ROOT_5 - 1) / 2
    expected = list(lines)
    while len(expected) > most:
        share *= Fraction(3, 4)
        expected = [i for i in lines if i * ratio % 1 < share]
    return expected


def limits(monkeypatch, pairs, characters=1 << 40):
    monkeypatch.setattr(vocabulary_sample, "SAMPLE_PAIRS", pairs)
    monkeypatch.setattr(vocabulary_sample, "SAMPLE_CHARACTERS", characters)


def test_a_corpus_within_the_limits_is_used_whole_and_in_order(monkeypatch):
    pairs = numbered(100)
    characters = sum(len(s) + len(t) for s, t in pairs)
    limits(monkeypatch, 100, characters)
    assert sampled(pairs, 7) == (pairs, 100)
    limits(monkeypatch, 99, characters)
    assert len(sampled(pairs, 7)[0]) < 100
    limits(monkeypatch, 100, characters - 1)
    assert len(sampled(pairs, 7)[0]) < 100


def test_the_sample_does_not_depend_on_the_blocks(monkeypatch):
    """Also if lines are unusable and the limit is one of characters."""
    generator = random.Random(5)
    pairs = [("s" * generator.randrange(1, 30), f"{i}") for i in range(3000)]
    usable = set(generator.sample(range(3000), 2000))
    for pair_limit, characters in ((300, 1 << 40), (3000, 4000), (3000, 1 << 40)):
        limits(monkeypatch, pair_limit, characters)
        results = [sampled(pairs, n, usable.__contains__)[0] for n in (1, 17, 1024, 3000)]
        assert all(result == results[0] for result in results)
        assert results[0] == sorted(results[0], key=lambda pair: int(pair[1]))
        assert len(results[0]) <= pair_limit
        assert sum(len(s) + len(t) for s, t in results[0]) <= characters


def test_a_line_is_in_the_sample_if_its_multiple_of_the_golden_ratio_is_below_the_share(
    monkeypatch,
):
    """The share is the largest power of 3/4 with which the sample fits."""
    limits(monkeypatch, 100)
    expected = below_the_share(range(1000), 100)
    assert sampled(numbered(1000), 64)[0] == [(f"s{i}", f"t{i}") for i in expected]


def test_lines_of_any_period_are_represented(monkeypatch):
    """Lines of several languages in turn: each has its share of the sample."""
    limits(monkeypatch, 1000)
    numbers = np.array([int(s[1:]) for s, _ in sampled(numbered(40_000), 4096)[0]])
    assert 700 <= len(numbers) <= 1000
    for period in (2, 3, 4, 5, 8, 16):
        counts = np.bincount(numbers % period, minlength=period)
        assert counts.min() > 0.8 * len(numbers) / period
    quarters = np.bincount(numbers // 10_000, minlength=4)
    assert quarters.min() > 0.9 * len(numbers) / 4


def test_most_lines_of_a_large_corpus_are_not_decoded(monkeypatch):
    limits(monkeypatch, 1000)
    assert sampled(numbered(40_000), 256)[1] < 6000


def test_the_numbering_of_lines_continues_in_the_next_part(monkeypatch):
    limits(monkeypatch, 50)
    pairs = numbered(200)
    assert sampled(pairs, 16, parts=3)[0] == sampled(pairs * 3, 16)[0]


def test_duplicates_are_dropped_within_a_part():
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("d", "b"), ("a", "c")]
    once = [("a", "b"), ("a", "c"), ("d", "b")]
    assert sampled(pairs, 2, deduplicate=True, parts=2)[0] == once * 2
    assert sampled(pairs, 2, parts=2)[0] == pairs * 2


def texts_of(spec, **fields):
    config = DataConfig(corpus=spec, **fields)
    return sample_texts(open_parts(spec, "train", config), config)


def test_the_sample_of_a_mixture_is_its_text(tmp_path, monkeypatch):
    """Tags, reversal, unusable lines and both kinds of files; each part once, at any weight."""
    (tmp_path / "a.tsv").write_text("x 1\ty 1\n\tblank\nx 2\ty 2\nx 2\ty 2\n")
    (tmp_path / "b.de").write_text("u\nv\n")
    (tmp_path / "b.en").write_text("w\nz\n")
    spec = f"3*tag:>>t<<:tsv:{tmp_path}/a.tsv + text:{tmp_path}/b.de,{tmp_path}/b.en"
    whole = texts_of(spec)
    assert whole == (
        [">>t<< x 1", ">>t<< x 2", ">>t<< x 2", "u", "v"],
        ["y 1", "y 2", "y 2", "w", "z"],
    )
    assert texts_of(spec, deduplicate=True, reverse=True) == (
        [">>t<< y 1", ">>t<< y 2", "w", "z"],
        ["x 1", "x 2", "u", "v"],
    )
    limits(monkeypatch, 4)  # positions of lines 0 2 3 4 5: 0 0.24 0.85 0.47 0.09
    assert texts_of(spec) == (
        [">>t<< x 1", ">>t<< x 2", "u", "v"],
        ["y 1", "y 2", "w", "z"],
    )


@pytest.mark.parametrize("block", [1, 16, 1 << 14])
def test_the_sample_of_a_large_corpus_has_the_lines_below_the_share(block, tmp_path, monkeypatch):
    """Also if some lines have no pair, in blocks of any size; line 0 is that of the first part."""
    lines = ["" if i % 7 == 3 else f"s{i}" for i in range(300)]
    for name, part in (("a", lines[:130]), ("b", lines[130:])):
        (tmp_path / name).write_text("".join(f"{line}\tt{line[1:]}\n" for line in part))
    monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_LINES", block)
    limits(monkeypatch, 50)
    expected = below_the_share([i for i in range(300) if lines[i]], 50)
    messages = []
    config = DataConfig(corpus=f"tsv:{tmp_path}/a + tsv:{tmp_path}/b")
    readers = open_parts(config.corpus, "train", config)
    sample = sample_texts(readers, config, messages.append)
    assert sample == ([f"s{i}" for i in expected], [f"t{i}" for i in expected])
    assert messages[-1] == f"vocabulary sample: {len(expected)} pairs from 300 lines"


def test_invalid_lines_of_a_part_that_is_used_whole_are_reported(tmp_path, monkeypatch):
    (tmp_path / "a.tsv").write_bytes(b"a\tb\n" * 8 + b"a\n" + b"a\tb\n" * 8)
    with pytest.raises(UserError, match="1 invalid line.*a.tsv:9") as caught:
        texts_of(f"tsv:{tmp_path}/a.tsv")
    assert caught.value.code == DATA
    limits(monkeypatch, 4)
    assert len(texts_of(f"tsv:{tmp_path}/a.tsv")[0]) in (3, 4)


def test_an_empty_compressed_file_is_reported(tmp_path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(UserError, match="a.tsv.gz: no usable pairs: the corpus is empty") as caught:
        texts_of(f"tsv:{tmp_path}/a.tsv.gz")
    assert caught.value.code == DATA
