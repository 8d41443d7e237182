"""Training pairs: one index over all parts of a mixture, compared with plain lists."""

import numpy as np
import pytest

from seq2seq.data.corpora.counts import Counts
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.data.tokens.token_store import memory_store
from seq2seq.data.tokens.training_pairs import EncodedPart, Part, TrainingPairs


def part(name, count, weights=False, weight=1.0, seed=0):
    """A part of `count` pairs, and a list of (source, target, loss weight or None, place)."""
    random = np.random.default_rng(seed)
    sides = [
        [random.integers(4, 99, random.integers(1, 6)).tolist() for _ in range(count)]
        for _ in range(2)
    ]
    loss_weights = random.random(count).astype(np.float32) if weights else None
    numbers = np.sort(random.choice(1000, count, replace=False))
    store = memory_store([Pairs(*map(ragged, sides), loss_weights)], [numbers])
    counts = Counts(count, {"blank": count + 1}, {"blank": [f"{name}:1"]})
    encoded = EncodedPart((name, f"{name}.en"), weight, store, counts, {name: f"hash of {name}"})
    listed = loss_weights.tolist() if weights else [None] * count
    places = [f"{name}:{number}" for number in numbers]
    return encoded, list(zip(*sides, listed, places, strict=True))


def sequences(side):
    return [side.ids[i:j].tolist() for i, j in zip(side.offsets, side.offsets[1:], strict=False)]


MIXTURES = {
    "one": [("a", 7, False)],
    "one with loss weights": [("a", 7, True)],
    "two": [("a", 1, False), ("b", 9, False)],
    "some with loss weights": [("a", 4, False), ("b", 5, True), ("c", 3, False)],
}


@pytest.mark.parametrize("parts", MIXTURES.values(), ids=MIXTURES)
def test_any_pairs_in_any_order_are_those_of_their_part(parts):
    made = [part(*arguments, weight=0.5 + seed, seed=seed) for seed, arguments in enumerate(parts)]
    pairs = TrainingPairs([encoded for encoded, _ in made])
    expected = [pair for _, listed in made for pair in listed]
    weighted = any(weights for _, _, weights in parts)
    assert len(pairs) == len(expected)
    assert pairs.parts == tuple(
        Part(part_arguments[1], 0.5 + i) for i, part_arguments in enumerate(parts)
    )
    random = np.random.default_rng(5)
    for index in ([], [len(expected) - 1], random.integers(0, len(expected), 40)):
        index = np.array(index, np.int64)
        chosen = [expected[i] for i in index]
        sources, targets, weights, places = ([pair[i] for pair in chosen] for i in range(4))
        selected = pairs.select(index)
        assert sequences(selected.source) == sources
        assert sequences(selected.target) == targets
        assert pairs.locate(index) == places
        lengths = pairs.row_lengths(index)
        assert lengths[0].tolist() == [len(ids) + 1 for ids in sources]
        assert lengths[1].tolist() == [len(ids) + 1 for ids in targets]
        for loss_weights in (selected.loss_weights, pairs.loss_weights(index)):
            if not weighted:
                assert loss_weights is None
            else:
                assert loss_weights.dtype == np.float32
                assert loss_weights.tolist() == [
                    1.0 if weight is None else weight for weight in weights
                ]
    every = np.arange(len(expected))
    assert sequences(pairs.select(every).source) == [pair[0] for pair in expected]


def test_the_reports_of_all_parts_are_merged_in_order():
    pairs = TrainingPairs([part("a", 3)[0], part("b", 5)[0]])
    assert pairs.counts == Counts(8, {"blank": 10}, {"blank": ["a:1", "b:1"]})
    assert pairs.hashes == {"a": "hash of a", "b": "hash of b"}


def test_the_memory_of_all_parts_is_released(monkeypatch):
    pairs = TrainingPairs([part("a", 3)[0], part("b", 5)[0]])
    released = []
    monkeypatch.setattr(
        "seq2seq.data.tokens.token_store.TokenStore.release", lambda store: released.append(store)
    )
    pairs.release()
    assert released == [part.store for part in pairs.encoded]
