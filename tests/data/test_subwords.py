"""Subword sampling, compared with SentencePiece and with enumeration of all segmentations."""

import math
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations, islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from data.batches import Batches, DataPosition
from data.config import DataConfig
from data.pairs import encode_pairs
from data.subwords import VARIANTS, SubwordSampler, bpe_dropout, segmentations, unigram_sample
from data.text_files import PairCollector
from data.tokenizer import UNKNOWN, ListTokenizer
from data.vocabulary import train_tokenizers
from runtime.errors import CONFIGURATION, UserError
from storage.config import Config

GERMAN = [
    f"Der {noun} {verb} den {other}."
    for noun in ("Hund", "Mann", "Ball", "Bär")
    for verb in ("sieht", "sucht", "hört")
    for other in ("Vogel", "Fisch", "König")
]
ENGLISH = [
    f"The {noun} {verb} the {other}."
    for noun in ("dog", "man", "ball", "bear")
    for verb in ("sees", "seeks", "hears")
    for other in ("bird", "fish", "king")
]
DRAWS = 4000


def tokenizer_of(kind):
    return train_tokenizers(DataConfig(tokenizer=kind, vocab_size=97), GERMAN, ENGLISH)[0]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def config(request):
    return DataConfig(
        tokenizer=request.param,
        vocab_size=97,
        source_length=41,
        target_length=43,
        subword_sampling=0.3,
    )


def a_corpus():
    pairs = PairCollector(("a.de", "a.en"), "error")
    for number, pair in enumerate(zip(GERMAN, ENGLISH, strict=True), start=1):
        pairs.add(number, *(text.encode() for text in pair))
    return pairs.corpus({})


def sampler_of(config, seed=5):
    corpus = a_corpus()
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    pairs, places, _ = encode_pairs(corpus, *tokenizers, config)
    texts = [[side[i] for i in places] for side in corpus[:2]]
    return SubwordSampler(pairs, texts, tokenizers, config, seed), pairs, texts, tokenizers[0]


def as_lists(side):
    return [side.ids[i:j].tolist() for i, j in pairwise(side.offsets)]


def close(got, share, total=DRAWS):
    """Whether a count agrees with a share within six standard errors of two such counts."""
    return abs(got / total - share) < 6 * math.sqrt(2 * max(share, 1 / total) / total)


def test_without_dropout_merges_are_those_of_sentencepiece():
    tokenizer = tokenizer_of("bpe")
    scores, ids = tokenizer.pieces()
    for text in {*" ".join(GERMAN + ENGLISH).split(), "Königshund", "seekingfishbirds"}:
        pieces = bpe_dropout("▁" + text, scores, 0.0, random.Random(0))
        assert [ids[piece] for piece in pieces] == tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_segmentations_are_all_cuts_of_a_word_into_pieces(kind):
    tokenizer = tokenizer_of(kind)
    _, ids = tokenizer.pieces()
    words, counts = {word.strip(".") for text in GERMAN for word in text.split()}, []
    for word in words:
        text = "▁" + word
        cuts = [cut for n in range(len(text)) for cut in combinations(range(1, len(text)), n)]
        every = [[text[i:j] for i, j in pairwise((0, *cut, len(text)))] for cut in cuts]
        expected = [tuple(map(ids.get, one)) for one in every if all(piece in ids for piece in one)]
        found = segmentations(text, tokenizer)
        assert sorted(found) == sorted(expected)
        assert tuple(tokenizer.encode(word)) in found
        assert {tokenizer.decode(one) for one in found} == {word}
        counts.append(len(found))
    assert max(counts) > 3
    assert segmentations("▁☃", tokenizer) == []


def test_segmentations_that_are_too_many_are_refused():
    """With the pieces a and aa their numbers are Fibonacci's: 6765 for 19 letters."""
    tokenizer = ListTokenizer("words", b"a\naa")
    assert len(segmentations("a" * 19, tokenizer)) == 6765
    with pytest.raises(ValueError, match="has more than 10,000 segmentations"):
        segmentations("a" * 60, tokenizer)


@pytest.mark.parametrize("drop", [0.1, 0.5])
def test_bpe_dropout_has_the_distribution_of_sentencepiece(drop):
    tokenizer, rng = tokenizer_of("bpe"), random.Random(1)
    scores, _ = tokenizer.pieces()
    ours = Counter(tuple(bpe_dropout("▁König", scores, drop, rng)) for _ in range(DRAWS))
    reference = Counter(
        tuple(
            tokenizer._processor.encode(
                "König", out_type=str, enable_sampling=True, alpha=drop, nbest_size=-1
            )
        )
        for _ in range(DRAWS)
    )
    assert len(ours) > 2
    for pieces in ours | reference:
        assert close(ours[pieces], reference[pieces] / DRAWS), pieces


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_pieces_are_sampled_by_their_probability(alpha):
    scores, _ = tokenizer_of("unigram").pieces()
    word, rng, weights = "▁seehears", random.Random(2), {}
    longest = max(map(len, scores))
    for count in range(len(word)):
        for cuts in combinations(range(1, len(word)), count):
            pieces = tuple(word[i:j] for i, j in pairwise((0, *cuts, len(word))))
            if all(piece in scores for piece in pieces):
                weights[pieces] = math.exp(alpha * sum(scores[piece] for piece in pieces))
    drawn = Counter(tuple(unigram_sample(word, scores, alpha, rng, longest)) for _ in range(DRAWS))
    assert len(weights) > 2
    assert drawn.keys() <= weights.keys()
    for pieces, weight in weights.items():
        assert close(drawn[pieces], weight / sum(weights.values())), pieces


def test_a_word_that_the_pieces_do_not_cover_is_refused():
    with pytest.raises(ValueError, match="no pieces"):
        unigram_sample("ab", {"a": -1.0}, 1.0, random.Random(0), 1)


def test_the_text_stays_and_the_pieces_change_with_the_epoch(config):
    sampler, usual, texts, tokenizer = sampler_of(config)
    for side, lines in enumerate(texts):
        epochs = [as_lists(sampler(epoch)[side]) for epoch in range(3)]
        for sentences in epochs:
            assert [tokenizer.decode(ids) for ids in sentences] == lines
        assert as_lists(usual[side]) not in epochs
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    # A word has several segmentations within an epoch.
    texts = {i: piece for piece, i in tokenizer.pieces()[1].items()}
    cuts = {}
    for ids in as_lists(sampler(0).target):
        for word in " ".join(texts[i] for i in ids).replace(" ▁", "\n▁").split("\n"):
            cuts.setdefault(word.replace(" ", ""), set()).add(word)
    assert 2 < max(map(len, cuts.values())) <= VARIANTS


def test_an_epoch_is_a_function_of_seed_and_epoch_in_any_process(config):
    here = [as_lists(side) for side in sampler_of(config)[0](4)[:2]]
    assert here == [as_lists(side) for side in sampler_of(config)[0](4)[:2]]
    assert here != [as_lists(side) for side in sampler_of(config, seed=6)[0](4)[:2]]
    code = (
        "from tests.data.test_subwords import *\n"
        f"print([as_lists(s) for s in sampler_of(DataConfig(**{vars(config)!r}))[0](4)[:2]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == repr(here)


def test_a_sentence_that_would_no_longer_fit_keeps_its_usual_pieces(config):
    loose, usual, _, _ = sampler_of(config)
    sampled, usual = as_lists(loose(0).source), as_lists(usual.source)
    limit = max(*map(len, usual), sorted(map(len, sampled))[len(sampled) // 2])
    tight = sampler_of(DataConfig(**{**vars(config), "source_length": limit + 1}))[0]
    fits = [len(one) <= limit for one in sampled]
    assert {*fits} == {True, False}
    assert as_lists(tight(0).source) == [
        one if fit else other for one, other, fit in zip(sampled, usual, fits, strict=True)
    ]


def test_a_word_with_an_unknown_character_keeps_its_usual_ids():
    config = DataConfig(tokenizer="bpe", vocab_size=97, subword_sampling=0.5)
    tokenizers = train_tokenizers(config, GERMAN, ENGLISH)
    pairs = PairCollector(("a", "a"), "error")
    pairs.add(1, "Der ☃mann".encode(), "The ☃".encode())
    corpus = pairs.corpus({})
    encoded, _, _ = encode_pairs(corpus, *tokenizers, config)
    sampler = SubwordSampler(encoded, corpus[:2], tokenizers, config, 0)
    usual = encoded.source.ids.tolist()
    for epoch in range(5):
        sampled = sampler(epoch).source.ids.tolist()
        assert sampled[sampled.index(UNKNOWN) :] == usual[usual.index(UNKNOWN) :]
        assert tokenizers[0].decode(sampled) == tokenizers[0].decode(usual)


def test_a_vocabulary_without_subwords_is_refused():
    with pytest.raises(UserError, match="bpe or unigram") as caught:
        Config(data=DataConfig(tokenizer="words", subword_sampling=0.1)).validate()
    assert caught.value.code == CONFIGURATION
    words = train_tokenizers(DataConfig(tokenizer="words"), GERMAN, ENGLISH)
    pairs, _, _ = encode_pairs(a_corpus(), *words, DataConfig())
    with pytest.raises(UserError, match="expected bpe or unigram"):
        SubwordSampler(pairs, (GERMAN, ENGLISH), words, DataConfig(subword_sampling=0.1), 0)


def test_a_pair_that_is_taken_often_is_segmented_in_many_ways(config):
    sampler, usual, texts, tokenizer = sampler_of(config)
    sampler._pairs = usual._replace(weights=((len(GERMAN), 8.0),))
    sampled = as_lists(sampler(0).target)
    assert len(sampled) == 8 * len(GERMAN)
    cuts = [{tuple(ids) for ids in sampled if tokenizer.decode(ids) == text} for text in texts[1]]
    assert min(map(len, cuts)) > 1
    assert sum(map(len, cuts)) > 4 * len(GERMAN)


def test_batches_of_sampled_pairs_can_be_made_at_any_position(config):
    shape = 5, config.source_length, config.target_length
    batches = Batches(sampler_of(config)[0], *shape, seed=5)
    steps = list(islice(batches.iterate(DataPosition()), 23))
    taken = [position for position, _, _ in steps]
    assert taken == [DataPosition(), *(following for _, _, following in steps[:-1])]
    assert taken[-1].epoch > 1
    for position, batch, _ in steps:
        fresh = Batches(sampler_of(config)[0], *shape, seed=5)[position]
        for one, other in zip(batch, fresh, strict=True):
            np.testing.assert_array_equal(one, other)
