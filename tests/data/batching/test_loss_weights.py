"""Loss weights of pairs: read from a third column, kept with their pairs, scaled in a batch."""

from itertools import chain, islice

import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.batching.batches import DataPosition, fixed_batches
from seq2seq.data.batching.loss_weights import label_weights, loss_weight_scale
from seq2seq.data.batching.packing import RowLayout
from seq2seq.data.corpora.registry import read_corpus
from seq2seq.data.corpora.text_files import parse_loss_weight
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens.encoding import encode_pairs
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.runtime.errors import DATA, UserError
from tests.support.memory_pairs import MemoryPairs, batches_in_windows

ROWS, SOURCE, TARGET = 5, 23, 31
LAYOUT = RowLayout(SOURCE, TARGET)


def random_pairs(count, seed=0):
    """Pairs of random ids with random loss weights, some of them 0."""
    random = np.random.default_rng(seed)
    sides = [
        ragged([[int(i)] * int(n) for i, n in enumerate(random.integers(1, capacity, count), 4)])
        for capacity in (SOURCE, TARGET)
    ]
    weights = random.exponential(3.0, count) * (random.random(count) < 0.8)
    return Pairs(*sides, loss_weights=weights.astype(np.float32))


def test_each_label_has_the_weight_of_its_pair_with_the_mean_one():
    """A loop over the tokens; the ids of pair i are i + 4."""
    pairs = random_pairs(211)
    arguments = MemoryPairs(pairs), ROWS, LAYOUT, 7
    batches = batches_in_windows(80, *arguments)
    training = (batch for _, batch, _ in islice(batches.iterate(DataPosition()), 40))
    for batch in chain(fixed_batches(pairs, ROWS, LAYOUT), training):
        expected = np.zeros((ROWS, TARGET))
        for row, segments in enumerate(batch.target_segments):
            for column, segment in enumerate(segments):
                if segment:
                    label = batch.source[row][batch.source_segments[row] == segment][0]
                    expected[row, column] = pairs.loss_weights[label - 4]
        expected *= (batch.target_segments > 0).sum() / expected.sum()
        np.testing.assert_allclose(batch.loss_weights, expected, rtol=1e-6)
        assert batch.loss_weights.dtype == np.float32


@pytest.mark.parametrize("weight", [1.0, 0.1, 3.0, 1e-30, 3e38])
def test_equal_weights_become_exactly_one(weight):
    pairs = random_pairs(97)
    pairs = pairs._replace(loss_weights=np.full(97, weight, np.float32))
    for batch in fixed_batches(pairs, ROWS, LAYOUT):
        np.testing.assert_array_equal(batch.loss_weights, batch.target_segments > 0)


def test_weights_of_zero_only_stay_zero():
    weights = np.zeros(2, np.float32)
    scale = loss_weight_scale(weights, np.array([5, 2]))
    scaled = label_weights(weights, np.array([0, 2]), np.array([[1, 2, 0], [0] * 3]), scale)
    np.testing.assert_array_equal(scaled, np.zeros((2, 3)))


def test_pairs_without_weights_have_no_array_of_weights():
    pairs = random_pairs(13)._replace(loss_weights=None)
    assert {batch.loss_weights for batch in fixed_batches(pairs, ROWS, LAYOUT)} == {None}


@pytest.mark.parametrize(
    "text, weight", [(b"0", 0.0), (b"2", 2.0), (b" 1e-3 ", 1e-3), (b"-0.0", 0.0), (b"3e38", 3e38)]
)
def test_a_weight_is_a_finite_number_of_at_least_zero(text, weight):
    assert parse_loss_weight(text) == weight


def test_another_text_is_not_a_weight():
    for text in (b"", b" ", b"x", b"1,5", b"-1e-9", b"nan", b"inf", b"-inf", b"1e39", b"\xff"):
        assert parse_loss_weight(text) is None


@pytest.fixture
def path(tmp_path):
    """A file of 23 pairs; the weight of "a 7" is 7. One line is blank, one is a duplicate."""
    path = tmp_path / "weighted.tsv"
    lines = [f"a {i}\tb {i}\t{i}" for i in range(23)]
    path.write_text("\n".join([*lines[:5], "\t\t9", "a 3\tb 3\t99", *lines[5:]]) + "\n")
    return path


def test_the_third_column_is_the_weight_of_the_kept_pairs(path):
    config = DataConfig(deduplicate=True)
    corpus = read_corpus(f"weighted_tsv:{path}", "train", config)
    assert corpus.source == [f"a {weight:.0f}" for weight in corpus.loss_weights]
    assert corpus.counts.dropped == {"blank": 1, "duplicate": 1} and len(corpus.source) == 23


def test_other_corpora_of_a_mixture_have_the_weight_one(path, tmp_path):
    plain = tmp_path / "plain.tsv"
    plain.write_text("c\td\n" * 3)
    spec = f"tsv:{plain} + 2*tag:>>x<<:weighted_tsv:{path} + tsv:{plain}"
    weights = read_corpus(spec, "train", DataConfig()).loss_weights
    alone = read_corpus(f"weighted_tsv:{path}", "train", DataConfig()).loss_weights
    assert weights.tolist() == [1.0] * 3 + alone.tolist() + [1.0] * 3
    assert read_corpus(f"tsv:{plain} + tsv:{plain}", "train", DataConfig()).loss_weights is None


def test_held_out_pairs_have_no_weights(path):
    for split in ("valid", "test"):
        corpus = read_corpus(f"weighted_tsv:{path}", split, DataConfig())
        assert corpus.loss_weights is None and len(corpus.source) == 24


def test_each_encoded_pair_has_its_weight(tmp_path):
    """Of a part of the pairs, with some that are too long."""
    path = tmp_path / "weighted.tsv"
    path.write_text("".join(f"a{' a' * (i % 3 == 1) * 9} {i}\tb {i}\t{i}\n" for i in range(31)))
    config = DataConfig(tokenizer="words", source_length=8, target_length=8)
    corpus = read_corpus(f"weighted_tsv:{path}", "train", config)
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    pairs, kept, dropped = encode_pairs(corpus, *tokenizers, config)
    assert dropped and kept.tolist() == [i for i in range(31) if i % 3 != 1]
    assert pairs.loss_weights.tolist() == [corpus.loss_weights[i] for i in kept]
    decoded = tokenizers[1].decode(pairs.target.ids)
    assert decoded.split() == [word for i in kept for word in corpus.target[i].split()]


def test_invalid_weights_are_all_reported_or_skipped(tmp_path):
    path = tmp_path / "pairs.tsv"
    lines = ["a\tb\t1", "a\tb", "a\tb\t-1", "a\tb\tx", "a\tb\t1\t1", "a\tb\t2", "a\tb\tnan"]
    path.write_text("\n".join(lines))
    with pytest.raises(UserError) as caught:
        read_corpus(f"weighted_tsv:{path}", "train", DataConfig())
    assert caught.value.code == DATA
    columns, weights = (
        f"2 invalid lines: expected 3 tab-separated columns, got 2 at {path}:2, 4 at {path}:5; ",
        f"3 invalid lines: expected a finite loss weight of at least 0, got '-1' at {path}:3, "
        f"'x' at {path}:4, 'nan' at {path}:7; ",
    )
    assert str(caught.value).startswith(columns) and weights in str(caught.value)
    corpus = read_corpus(f"weighted_tsv:{path}", "train", DataConfig(on_bad_line="skip"))
    assert corpus.counts.dropped == {"wrong number of columns": 2, "invalid loss weight": 3}
    assert corpus.loss_weights.tolist() == [1.0, 2.0]


def test_a_file_whose_weights_are_all_zero_is_refused(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\t0\na\tc\t0.0\n")
    with pytest.raises(UserError, match="pairs.tsv: all loss weights are 0") as caught:
        read_corpus(f"weighted_tsv:{path}", "train", DataConfig())
    assert caught.value.code == DATA
    assert len(read_corpus(f"weighted_tsv:{path}", "valid", DataConfig()).source) == 2
