"""A store of token ids returns the pairs that were written; damage is found at the first read."""

import json

import numpy as np
import pytest

from data.pairs import Pairs, ragged
from data.token_store import INDEX, TokenStore, finish_store, mapped_arrays, write_shard
from runtime.errors import DATA, UserError


def random_pairs(count, seed, highest=60_000, weights=False):
    random = np.random.default_rng(seed)
    sides = [
        [random.integers(4, highest, random.integers(1, 9)).tolist() for _ in range(count)]
        for _ in range(2)
    ]
    loss_weights = random.random(count).astype(np.float32) if weights else None
    return Pairs(*map(ragged, sides), loss_weights=loss_weights)


def listed(pairs):
    """[(source ids, target ids)] of each pair."""
    return [
        tuple(side.ids[side.offsets[i] : side.offsets[i + 1]].tolist() for side in pairs[:2])
        for i in range(len(pairs.source.lengths))
    ]


def written(path, parts):
    path.mkdir()
    shards, line = [], 1
    for number, pairs in enumerate(parts):
        count = len(pairs.source.lengths)
        shards.append(write_shard(path, number, pairs, np.arange(line, line + 2 * count, 2)))
        line += 2 * count
    finish_store(path, {"files": ["a"]}, shards)
    return TokenStore(path)


@pytest.mark.parametrize("highest", [60_000, 250_000])
@pytest.mark.parametrize("weights", [False, True])
def test_any_pairs_in_any_order_are_those_written(tmp_path, highest, weights):
    parts = [random_pairs(n, n, highest, weights) for n in (11, 1, 29)]
    store = written(tmp_path / "store", parts)
    pairs = [pair for part in parts for pair in listed(part)]
    assert len(store) == len(pairs) == 41 and store.key == {"files": ["a"]}
    for index in ([], [40], [10, 11, 12], np.random.default_rng(0).integers(0, 41, 100)):
        index = np.array(index, np.int64)
        found = store.select(index)
        assert listed(found) == [pairs[i] for i in index]
        assert found.source.ids.dtype == found.target.ids.dtype == np.int32
        expected = [[len(side) + 1 for side in pairs[i]] for i in index]
        assert np.transpose(store.slots(index)).tolist() == expected
        assert store.numbers(index).tolist() == [2 * i + 1 for i in index]
        if weights and len(index):
            of_all = np.concatenate([part.loss_weights for part in parts])
            np.testing.assert_array_equal(found.loss_weights, of_all[index])
        else:
            assert found.loss_weights is None


def test_ids_take_two_bytes_if_they_fit(tmp_path):
    written(tmp_path / "small", [random_pairs(5, 0, 65_536)])
    written(tmp_path / "large", [random_pairs(50, 0, 200_000)])
    for name, dtype in (("small", np.uint16), ("large", np.int32)):
        arrays = mapped_arrays(tmp_path / name / "00000.safetensors")
        assert arrays["source"].dtype == dtype and not arrays["source"].flags.writeable


def test_the_shards_are_safetensors_files(tmp_path):
    from safetensors.numpy import load_file

    pairs = random_pairs(7, 3)
    written(tmp_path / "store", [pairs])
    arrays = load_file(tmp_path / "store" / "00000.safetensors")
    assert arrays["source"].tolist() == pairs.source.ids.tolist()
    assert arrays["target_offsets"].tolist() == pairs.target.offsets.tolist()


@pytest.mark.parametrize("damage", ["flipped", "shorter", "missing"])
def test_a_damaged_shard_is_found_when_it_is_first_read(tmp_path, damage):
    store = written(tmp_path / "store", [random_pairs(9, n) for n in range(3)])
    path = tmp_path / "store" / "00001.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[-1] ^= 1
        path.write_bytes(content if damage == "flipped" else content[:-1])
    assert len(store.select(np.array([0, 8, 18, 26])).source.lengths) == 4
    with pytest.raises(UserError, match="00001.safetensors is damaged .*; delete") as caught:
        store.select(np.array([0, 9]))
    assert caught.value.code == DATA and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"key": {}, "shards": [{"name": 1}]}'])
def test_a_store_without_a_valid_index_is_not_complete(tmp_path, content):
    written(tmp_path / "store", [random_pairs(3, 0)])
    index = tmp_path / "store" / INDEX
    assert json.loads(index.read_text())["shards"][0]["pairs"] == 3
    index.unlink()
    if content is not None:
        index.write_text(content)
    with pytest.raises(UserError, match=f"{INDEX} is damaged") as caught:
        TokenStore(tmp_path / "store")
    assert caught.value.code == DATA
