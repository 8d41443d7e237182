"""Subword sampling, compared with SentencePiece and with enumeration of all segmentations."""

import io
import math
import pickle
import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from seq2seq.data.config import DataConfig
from seq2seq.data.corpora.collector import PairCollector
from seq2seq.data.special_tokens import UNKNOWN
from seq2seq.data.subwords import sampling as subwords
from seq2seq.data.subwords.bpe_dropout import BpeDropout
from seq2seq.data.subwords.piece_table import PieceTable, piece_table
from seq2seq.data.subwords.sampling import VARIANTS, SubwordSampler, segmentations, sequence_labels
from seq2seq.data.subwords.unigram_sampling import UnigramSampling
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.data.tokenizers.sentencepiece_model import read_pieces, with_pieces
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens.encoding import encode_pairs
from seq2seq.data.tokens.pairs import Pairs, ragged, select_sequences
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.storage.config import Config

GERMAN = [
    f"Der {noun} {verb} den {object_noun}."
    for noun in ("Hund", "Mann", "Ball", "Bär")
    for verb in ("sieht", "sucht", "hört")
    for object_noun in ("Vogel", "Fisch", "König")
]
ENGLISH = [
    f"The {noun} {verb} the {object_noun}."
    for noun in ("dog", "man", "ball", "bear")
    for verb in ("sees", "seeks", "hears")
    for object_noun in ("bird", "fish", "king")
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
    pairs = PairCollector(("a.de", "a.en"), DataConfig())
    for number, pair in enumerate(zip(GERMAN, ENGLISH, strict=True), start=1):
        pairs.add(number, *(text.encode() for text in pair))
    return pairs.collected()


def sampler_of(config):
    """A sampler, usual token ids, both sides of the text, and the tokenizer of both sides."""
    corpus = a_corpus()
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    pairs, places, _ = encode_pairs(corpus, *tokenizers, config)
    texts = [[side[i] for i in places] for side in corpus[:2]]
    return SubwordSampler(tokenizers, config), pairs, texts, tokenizers[0]


def as_lists(side):
    return [side.ids[i:j].tolist() for i, j in pairwise(side.offsets)]


def close(got, share, total=DRAWS):
    """Whether a count agrees with a share within six standard errors of two such counts."""
    return abs(got / total - share) < 6 * math.sqrt(2 * max(share, 1 / total) / total)


def samples(segment, table, words, count, seed=0):
    """For each word, a tuple of the ids of its characters: how often each sequence was drawn.

    All words are sampled together; after the longest one there is still padding.
    """
    padded = np.full((len(words), max(map(len, words)) + 2), table.size, np.int32)
    for row, word in enumerate(words):
        padded[row, : len(word)] = word
    generator = np.random.Generator(np.random.PCG64(seed))
    rows = segment(padded, np.full(len(words), count), generator).tolist()
    drawn = [tuple(i for i in row if 0 <= i < table.size) for row in rows]
    return [Counter(drawn[i * count : (i + 1) * count]) for i in range(len(words))]


def samples_of_texts(segment, tokenizer, texts, count=DRAWS):
    """`samples` of words of a tokenizer, as tuples of pieces."""
    _, ids = tokenizer.pieces()
    words = [tuple(ids[c] for c in text) for text in texts]
    return [
        Counter({tuple(map(tokenizer.piece, drawn)): n for drawn, n in draws.items()})
        for draws in samples(segment, piece_table(tokenizer), words, count)
    ]


def table_of(pieces):
    """The table of a vocabulary {text: score} without special pieces."""
    texts = list(pieces)
    ids = {text: i for i, text in enumerate(texts)}
    return PieceTable(
        np.array([text.startswith("▁") for text in texts]),
        np.zeros(len(texts), bool),
        ragged([[ids[c] for c in text] for text in texts]),
        np.array([*pieces.values(), 0.0, -np.inf]),
    )


def test_without_dropout_merges_are_those_of_sentencepiece():
    tokenizer = tokenizer_of("bpe")
    texts = [*{*" ".join(GERMAN + ENGLISH).split(), "Königshund", "seekingfishbirds"}]
    segment = BpeDropout(piece_table(tokenizer), 0.0)
    results = samples_of_texts(segment, tokenizer, ["▁" + text for text in texts], 2)
    for text, pieces in zip(texts, results, strict=True):
        assert pieces == {tuple(map(tokenizer.piece, tokenizer.encode(text))): 2}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_segmentations_are_all_cuts_of_a_word_into_pieces(kind):
    tokenizer = tokenizer_of(kind)
    _, ids = tokenizer.pieces()
    words, counts = {word.strip(".") for text in GERMAN for word in text.split()}, []
    for word in words:
        text = "▁" + word
        cuts = [cut for n in range(len(text)) for cut in combinations(range(1, len(text)), n)]
        every = [[text[i:j] for i, j in pairwise((0, *cut, len(text)))] for cut in cuts]
        expected = [
            tuple(map(ids.get, texts)) for texts in every if all(piece in ids for piece in texts)
        ]
        sequences = segmentations(text, tokenizer)
        assert sorted(sequences) == sorted(expected)
        assert tuple(tokenizer.encode(word)) in sequences
        assert {tokenizer.decode(sequence) for sequence in sequences} == {word}
        counts.append(len(sequences))
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
    tokenizer = tokenizer_of("bpe")
    texts = "König", "Der", "seehears"
    segment = BpeDropout(piece_table(tokenizer), drop)
    results = samples_of_texts(segment, tokenizer, ["▁" + text for text in texts])
    for text, ours in zip(texts, results, strict=True):
        reference = Counter(
            tuple(
                tokenizer._processor.encode(
                    text, out_type=str, enable_sampling=True, alpha=drop, nbest_size=-1
                )
            )
            for _ in range(DRAWS)
        )
        assert len(ours) > 2
        for pieces in ours | reference:
            assert close(ours[pieces], reference[pieces] / DRAWS), pieces


def dropout_shares(pieces, spans, drop, dropped=frozenset()):
    """The probability of each result of BPE-dropout, by enumeration of all decisions.

    `spans`: the start and the end of each piece so far; `pieces`: text → score.
    """
    word, result_shares = spans[0], Counter()
    text, cuts = word
    choices = [
        (-pieces[text[a:c]], i)
        for i, (a, b, c) in enumerate(zip(cuts, cuts[1:], cuts[2:], strict=False))
        if text[a:c] in pieces and (a, b, c) not in dropped
    ]
    if not choices:
        return Counter({tuple(text[a:b] for a, b in pairwise(cuts)): 1.0})
    _, i = min(choices)
    merged = (text, (*cuts[: i + 1], *cuts[i + 2 :]))
    for share, result in (
        (1 - drop, dropout_shares(pieces, [merged], drop, dropped)),
        (drop, dropout_shares(pieces, spans, drop, dropped | {cuts[i : i + 3]})),
    ):
        for pieces_of_result, probability in result.items():
            result_shares[pieces_of_result] += share * probability
    return result_shares


def test_bpe_dropout_of_any_vocabulary_has_the_shares_of_all_decisions():
    """Scores that are equal, and scores of long pieces above those of their parts."""
    pieces = dict.fromkeys("abc", -9.0)
    pieces |= {"ab": -2.0, "bc": -2.0, "aa": -3.0, "abc": -1.0, "ca": -4.0, "aab": -2.0}
    pieces |= {"caa": -0.5, "bcab": -6.0, "abca": -5.0}
    table, words = table_of(pieces), ["abcaab", "aaaa", "c", "bcabca", "caab"]
    ids = {text: i for i, text in enumerate(pieces)}
    results = samples(BpeDropout(table, 0.3), table, [[ids[c] for c in w] for w in words], DRAWS)
    for word, drawn in zip(words, results, strict=True):
        shares = dropout_shares(pieces, [(word, tuple(range(len(word) + 1)))], 0.3)
        drawn = Counter({tuple(list(pieces)[i] for i in places): n for places, n in drawn.items()})
        assert drawn.keys() <= shares.keys()
        for result, share in shares.items():
            assert close(drawn[result], share), (word, result)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_pieces_are_sampled_by_their_probability(alpha):
    tokenizer = tokenizer_of("unigram")
    scores, _ = tokenizer.pieces()
    words = "▁seehears", "▁sees", "▁Königs", "▁"
    segment = UnigramSampling(piece_table(tokenizer), alpha)
    results = samples_of_texts(segment, tokenizer, words)
    for word, drawn in zip(words, results, strict=True):
        weights = {}
        for count in range(len(word)):
            for cuts in combinations(range(1, len(word)), count):
                pieces = tuple(word[i:j] for i, j in pairwise((0, *cuts, len(word))))
                if all(piece in scores for piece in pieces):
                    weights[pieces] = math.exp(alpha * sum(scores[piece] for piece in pieces))
        assert len(weights) > 2 or word != words[0]
        assert drawn.keys() <= weights.keys()
        for pieces, weight in weights.items():
            assert close(drawn[pieces], weight / sum(weights.values())), pieces


def test_unigram_sampling_of_a_long_word_does_not_underflow():
    """Every segmentation has a probability of at most 2^-8000; the smallest float64 is 2^-1074.

    The sum Z(n) over the segmentations of n letters is Z(n − 1) / 8 + Z(n − 2) / 16. So the ratio r
    of consecutive sums tends to the solution of r² = r / 8 + 1 / 16, and the last piece is aa with
    probability Z(n − 2) / 16 / Z(n) = 1 / 16 / r².
    """
    table = table_of({"a": math.log(1 / 8), "aa": math.log(1 / 16)})
    (drawn,) = samples(UnigramSampling(table, 1.0), table, [[0] * 4000], 3)
    ratio = (1 / 8 + math.sqrt(1 / 64 + 1 / 4)) / 2
    share = 1 / 16 / ratio**2
    for pieces in drawn:
        assert sum(i + 1 for i in pieces) == 4000
        assert abs(sum(pieces) / len(pieces) - share) < 6 * math.sqrt(share / len(pieces))


def words_of(tokenizer, ids):
    """The words of a sentence, each a tuple of ids, from the text of its pieces."""
    words = []
    for i in ids:
        if not words or tokenizer.piece(i).startswith("▁"):
            words.append(())
        words[-1] += (i,)
    return words


def test_the_text_stays_and_the_pieces_change_with_the_key(config):
    sampler, usual, texts, tokenizer = sampler_of(config)
    for side, lines in enumerate(texts):
        windows = [as_lists(sampler(usual, (5, key))[side]) for key in range(3)]
        for sentences in windows:
            assert [tokenizer.decode(ids) for ids in sentences] == lines
        assert as_lists(usual[side]) not in windows
        assert windows[0] != windows[1] != windows[2] != windows[0]
    # A word has several segmentations within a window.
    cuts = {}
    for ids in as_lists(sampler(usual, (5, 0)).target):
        for word in words_of(tokenizer, ids):
            cuts.setdefault("".join(map(tokenizer.piece, word)), set()).add(word)
    assert 2 < max(map(len, cuts.values())) <= VARIANTS


def test_the_sides_are_sampled_independently(config):
    sampler, usual, _, _ = sampler_of(config)
    both = sampler(Pairs(usual.source, usual.source), (1,))
    assert as_lists(both.source) != as_lists(both.target)


def test_each_side_has_its_own_vocabulary(config):
    fields = {**vars(config), "joint_vocab": False, "target_tokenizer": "bpe", "vocab_size": 60}
    tokenizers = train_tokenizers(DataConfig(**fields), GERMAN, ENGLISH)
    pairs, _, _ = encode_pairs(a_corpus(), *tokenizers, DataConfig(**fields))
    sampled = SubwordSampler(tokenizers, DataConfig(**fields))(pairs, (0,))
    for side, tokenizer, lines in zip(sampled[:2], tokenizers, (GERMAN, ENGLISH), strict=True):
        assert [tokenizer.decode(ids) for ids in as_lists(side)] == lines


def test_variants_of_a_frequent_word_have_the_shares_of_its_segmentations():
    """Over many keys, an occurrence of a word has the distribution of the word's samples."""
    config = DataConfig(tokenizer="unigram", vocab_size=97, subword_sampling=0.2)
    tokenizers = train_tokenizers(config, GERMAN, ENGLISH)
    ids = tokenizers[0].encode("Der seehears sieht")
    pairs = Pairs(ragged([ids] * 3), ragged([ids] * 3))
    sampler = SubwordSampler(tokenizers, config)
    segment = UnigramSampling(piece_table(tokenizers[0]), 0.2)
    (expected,) = samples_of_texts(segment, tokenizers[0], ["▁seehears"], 20_000)
    counts = Counter()
    for key in range(400):
        for side in sampler(pairs, (key,))[:2]:
            last = as_lists(side)[-1]
            counts[tuple(map(tokenizers[0].piece, words_of(tokenizers[0], last)[1]))] += 1
    assert len(expected) > 5
    for pieces, count in expected.items():
        assert close(counts[pieces], count / 20_000, 800), pieces


def test_a_window_is_a_function_of_pairs_and_key_in_any_process(config):
    sampler, usual, _, _ = sampler_of(config)
    here = [as_lists(side) for side in sampler(usual, (5, 4))[:2]]
    sampler(usual, (5, 9))
    assert here == [as_lists(side) for side in sampler(usual, (5, 4))[:2]]
    assert here != [as_lists(side) for side in sampler(usual, (6, 4))[:2]]
    code = (
        "import pickle, sys\n"
        "sampler, pairs = pickle.load(sys.stdin.buffer)\n"
        "sides = sampler(pairs, (5, 4))[:2]\n"
        "print([[one.tolist() for one in side] for side in sides])\n"
        "assert not {'jax', 'sentencepiece'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps((sampler, usual)),
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    expected = [[ids.tolist() for ids in side] for side in sampler(usual, (5, 4))[:2]]
    assert done.stdout.decode().strip() == repr(expected)


def test_weights_stay_with_their_pairs(config):
    sampler, usual, _, _ = sampler_of(config)
    loss_weights = np.arange(len(GERMAN), dtype=np.float32)
    pairs = usual._replace(loss_weights=loss_weights)
    sampled = sampler(pairs, (0,))
    np.testing.assert_array_equal(sampled.loss_weights, loss_weights)


def test_a_window_without_pairs_or_with_an_empty_sentence_can_be_sampled(config):
    sampler, usual, _, tokenizer = sampler_of(config)
    nothing = sampler(Pairs(ragged([]), ragged([])), (0,))
    assert [as_lists(side) for side in nothing[:2]] == [[], []]
    first = as_lists(usual.source)[0]
    some = sampler(Pairs(ragged([[], first, []]), ragged([first, [], first])), (0,))
    texts = [[tokenizer.decode(ids) for ids in as_lists(side)] for side in some[:2]]
    assert texts == [["", GERMAN[0], ""], [GERMAN[0], "", GERMAN[0]]]


def test_words_are_sampled_in_groups_of_any_size(config, monkeypatch):
    sampler, usual, texts, tokenizer = sampler_of(config)
    for limit in (1, 100):
        monkeypatch.setattr(subwords, "CHARACTERS_AT_ONCE", limit)
        for side, lines in zip(sampler(usual, (5, 0))[:2], texts, strict=True):
            assert [tokenizer.decode(ids) for ids in as_lists(side)] == lines


def test_a_group_has_little_padding_and_bounded_size(monkeypatch):
    monkeypatch.setattr(subwords, "CHARACTERS_AT_ONCE", 500)
    generator = np.random.default_rng(0)
    lengths = np.sort(generator.integers(1, 60, 400))
    counts = generator.integers(1, 9, 400)
    groups = list(subwords._groups(lengths, counts))
    assert [i for group in groups for i in range(400)[group]] == list(range(400))
    assert len(groups) < 400 * 0.9
    for group in groups:
        longest = lengths[group].max()
        assert longest <= lengths[group].min() * 9 / 8
        assert len(lengths[group]) == 1 or counts[group].sum() * longest <= 500


@pytest.mark.parametrize("size", [2, 5, 300])
def test_sequences_have_the_same_label_if_their_ids_are_the_same(size):
    generator = np.random.default_rng(size)
    sequences = [generator.integers(0, size, generator.integers(1, 7)).tolist() for _ in range(500)]
    sequences += [[size - 1] * n for n in range(1, 40)] + [[0] * 30 + [i] for i in range(size)]
    labels = sequence_labels(ragged(sequences)).tolist()
    pairs = {(tuple(ids), label) for ids, label in zip(sequences, labels, strict=True)}
    distinct = {tuple(ids) for ids in sequences}
    assert len(pairs) == len(distinct)
    assert {label for _, label in pairs} == set(range(len(distinct)))


def test_pieces_that_cross_a_space_keep_the_text():
    from sentencepiece import SentencePieceTrainer

    for kind, amount in (("unigram", 0.3), ("bpe", 0.3)):
        model = io.BytesIO()
        SentencePieceTrainer.train(
            sentence_iterator=iter(GERMAN), model_writer=model, model_type=kind, vocab_size=120,
            hard_vocab_limit=False, minloglevel=2, split_by_whitespace=False,
            pad_id=0, bos_id=1, eos_id=2, unk_id=3,
        )  # fmt: skip
        tokenizer = SentencePieceTokenizer(kind, model.getvalue())
        pairs = Pairs(*[ragged(tokenizer.encode_many(GERMAN))] * 2)
        assert any("▁" in tokenizer.piece(int(i))[1:] for i in pairs.source.ids)
        sampler = SubwordSampler((tokenizer, tokenizer), DataConfig(subword_sampling=amount))
        for key in range(3):
            sampled = as_lists(sampler(pairs, (key,)).source)
            assert sampled != as_lists(pairs.source)
            assert [tokenizer.decode(ids) for ids in sampled] == GERMAN


def test_a_word_with_a_character_that_has_no_piece_of_its_own_keeps_its_ids(config):
    trained = train_tokenizers(config, GERMAN, ENGLISH)[0]
    pieces = read_pieces(trained.serialized())
    missing = next(piece.text[-1] for piece in pieces[4:] if len(piece.text) == 3)
    pieces = [piece for piece in pieces if piece.text != missing]
    model = with_pieces(trained.serialized(), pieces)
    tokenizer = SentencePieceTokenizer(config.tokenizer, model)
    fixed = {i for i in range(tokenizer.size) if missing in tokenizer.piece(i)}
    pairs = Pairs(*[ragged(tokenizer.encode_many(GERMAN))] * 2)
    sampler = SubwordSampler((tokenizer, tokenizer), config)
    changed = 0
    for key in range(4):
        for i, ids in enumerate(as_lists(sampler(pairs, (key,)).source)):
            usual = as_lists(pairs.source)[i]
            before, after = (
                {w for w in words_of(tokenizer, sentence) if {UNKNOWN, *fixed} & {*w}}
                for sentence in (usual, ids)
            )
            assert before == after
            changed += bool(before) and usual != ids
    assert changed


def test_a_sentence_that_would_no_longer_fit_keeps_its_usual_pieces(config):
    loose, pairs, _, _ = sampler_of(config)
    for side, name in enumerate(("source_length", "target_length")):
        sampled, usual = as_lists(loose(pairs, (0,))[side]), as_lists(pairs[side])
        limit = max(*map(len, usual), sorted(map(len, sampled))[len(sampled) // 2])
        tight = sampler_of(DataConfig(**{**vars(config), name: limit + 1}))[0]
        fits = [len(new) <= limit for new in sampled]
        assert {*fits} == {True, False}
        assert as_lists(tight(pairs, (0,))[side]) == [
            new if fit else old for new, old, fit in zip(sampled, usual, fits, strict=True)
        ]


def test_a_word_with_an_unknown_character_keeps_its_usual_ids():
    config = DataConfig(tokenizer="bpe", vocab_size=97, subword_sampling=0.5)
    tokenizers = train_tokenizers(config, GERMAN, ENGLISH)
    pairs = PairCollector(("a", "a"), DataConfig())
    pairs.add(1, "Der ☃mann".encode(), "The ☃".encode())
    corpus = pairs.collected()
    encoded, _, _ = encode_pairs(corpus, *tokenizers, config)
    sampler = SubwordSampler(tokenizers, config)
    usual = encoded.source.ids.tolist()
    for key in range(5):
        sampled = sampler(encoded, (key,)).source.ids.tolist()
        assert sampled[sampled.index(UNKNOWN) :] == usual[usual.index(UNKNOWN) :]
        assert tokenizers[0].decode(sampled) == tokenizers[0].decode(usual)


def test_sampling_never_splits_a_user_defined_piece(config):
    tags = "sehen", "senden"  # all of their letters have pieces
    corpus = a_corpus()
    lines = [f"{tags[i % 2]} {text}" for i, text in enumerate(corpus.source)]
    corpus = corpus._replace(source=lines)
    tokenizers = train_tokenizers(config, corpus.source, corpus.target, tags)
    pairs, _, _ = encode_pairs(corpus, *tokenizers, config)
    sampler = SubwordSampler(tokenizers, config)
    ids = [tokenizers[0].id_of(tag) for tag in tags]
    for key in range(2):
        for i, sentence in enumerate(as_lists(sampler(pairs, (key,)).source)):
            assert [token for token in sentence if token in ids] == [ids[i % 2]]
            assert tokenizers[0].decode(sentence) == lines[i]


def test_a_vocabulary_without_subwords_is_refused():
    with pytest.raises(UserError, match="bpe or unigram") as caught:
        Config(data=DataConfig(tokenizer="words", subword_sampling=0.1)).validate()
    assert caught.value.code == CONFIGURATION
    words = train_tokenizers(DataConfig(tokenizer="words"), GERMAN, ENGLISH)
    with pytest.raises(UserError, match="expected bpe or unigram, got words, words"):
        SubwordSampler(words, DataConfig(subword_sampling=0.1))


def test_a_pair_that_occurs_often_is_segmented_in_many_ways(config):
    sampler, usual, texts, tokenizer = sampler_of(config)
    often = np.repeat(np.arange(len(GERMAN)), 8)
    sampled = as_lists(sampler(Pairs(*(select_sequences(s, often) for s in usual[:2])), (5,))[1])
    assert [tokenizer.decode(ids) for ids in sampled] == [texts[1][i] for i in often]
    cuts = [{tuple(ids) for ids in sampled if tokenizer.decode(ids) == text} for text in texts[1]]
    assert min(map(len, cuts)) > 1
    assert sum(map(len, cuts)) > 4 * len(GERMAN)
