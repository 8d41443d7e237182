"""Encoded pairs: kept ones have their index in the corpus, dropped ones are counted."""

from array import array
from itertools import pairwise

import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.corpus import CollectedBlock, Corpus, Origin
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens.encoding import check_pairs_left, encode_pairs
from seq2seq.data.tokens.pairs import ragged, select_sequences
from seq2seq.runtime.errors import DATA, UserError


def a_corpus(source, target):
    origin = Origin(("a.de", "a.en"), len(source))
    return Corpus(source, target, array("q", range(1, len(source) + 1)), (origin,), Counts(), {})


def test_pairs_that_do_not_fit_are_dropped_and_counted():
    config = DataConfig(tokenizer="words", source_length=5, target_length=7, max_length_ratio=3.0)
    corpus = a_corpus(
        ["a b", "a b a b a", "a b", " ", "a b a b", "a", "b"],
        ["b", "b", "a b a b a b a", "a", "a b a b a b", "b b b b", "b b b"],
    )
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    pairs, kept, dropped = encode_pairs(corpus, *tokenizers, config)
    assert kept.tolist() == [0, 4, 6]
    assert dropped == {
        "source longer than 4 tokens": [1],
        "target longer than 6 tokens": [2],
        "empty after tokenizing": [3],
        "length ratio above 3": [5],
    }
    for side, tokenizer, texts in zip(pairs[:2], tokenizers, corpus[:2], strict=True):
        assert [tokenizer.decode(side.ids[i:j]) for i, j in pairwise(side.offsets)] == [
            texts[i] for i in kept
        ]
    assert [lengths.tolist() for lengths in pairs.row_lengths] == [[3, 5, 2], [2, 7, 4]]


def test_sequences_are_selected_in_the_order_of_the_index():
    selected = select_sequences(ragged([[7, 8], [9], [5, 6, 4]]), np.array([2, 0]))
    assert (selected.ids.tolist(), selected.offsets.tolist()) == ([5, 6, 4, 7, 8], [0, 3, 5])


def test_pairs_are_the_same_in_blocks_of_any_size(monkeypatch):
    config = DataConfig(tokenizer="characters")
    corpus = a_corpus([str(i) for i in range(37)], [str(i * i) for i in range(37)])
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    whole = encode_pairs(corpus, *tokenizers, config)
    monkeypatch.setattr("seq2seq.data.tokens.encoding.ENCODE_AT_ONCE", 5)
    blocks = encode_pairs(corpus, *tokenizers, config)
    results = [(*pairs[:2], (kept,)) for pairs, kept, _ in (whole, blocks)]
    for first, second in zip(*results, strict=True):
        for left, right in zip(first, second, strict=True):
            np.testing.assert_array_equal(left, right)


def test_a_corpus_without_fitting_pairs_has_no_pairs_and_is_refused_with_the_counts():
    config = DataConfig(tokenizer="words", source_length=3)
    corpus = a_corpus(["a b c"] * 11, ["a"] * 11)
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    pairs, kept, dropped = encode_pairs(corpus, *tokenizers, config)
    assert len(kept) == len(pairs.source.ids) == 0 and pairs.target.offsets.tolist() == [0]
    counts = {"blank": 2} | {reason: len(of) for reason, of in dropped.items()}
    with pytest.raises(UserError, match="^a: 0 of 13 pairs left: 2 blank, 11 source lo") as caught:
        check_pairs_left(["a", "a"], len(kept), counts)
    assert caught.value.code == DATA
    check_pairs_left(["a"], 1, counts)


@pytest.mark.parametrize("pairs", [0, 7])
def test_a_block_is_encoded_with_its_loss_weights(pairs):
    """Also a block of which no pair is left."""
    texts = ["a b" if i % 3 else "a b a b" for i in range(pairs)]
    weights = array("f", [i / 2 for i in range(pairs)])
    block = CollectedBlock(texts, texts, array("q", range(pairs)), weights, Counts())
    config = DataConfig(tokenizer="words", source_length=4)
    tokenizers = train_tokenizers(config, ["a b"], ["a b"])
    encoded, kept, _ = encode_pairs(block, *tokenizers, config)
    assert kept.tolist() == [i for i in range(pairs) if i % 3]
    assert encoded.loss_weights.tolist() == [i / 2 for i in kept]
    assert encoded.source.lengths.tolist() == [2] * len(kept)


def test_very_long_texts_are_dropped_before_they_are_tokenized():
    config = DataConfig(tokenizer="characters", source_length=5, target_length=7)
    corpus = a_corpus(["a", "b" * (64 * 4 + 1), "a b"], ["a", "b", "b" * (64 * 6 + 1)])
    seen = []

    class Watched:
        def encode_many(self, texts):
            seen.extend(texts)
            return [[5] * len(text) for text in texts]

    _, kept, dropped = encode_pairs(corpus, Watched(), Watched(), config)
    assert (kept.tolist(), seen) == ([0], ["a", "a"])
    assert dropped == {
        "source longer than 256 characters": [1],
        "target longer than 384 characters": [2],
    }
