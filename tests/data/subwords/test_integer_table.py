"""The table of integers, compared with a dict."""

import numpy as np
import pytest

from seq2seq.data.subwords.integer_table import MULTIPLIER, IntegerTable


@pytest.mark.parametrize("size", [0, 1, 5, 3000])
@pytest.mark.parametrize("highest", [1 << 13, 1 << 62])
def test_a_table_has_the_values_of_a_dict(size, highest):
    choose = np.random.default_rng(size)
    keys = choose.integers(0, highest, size).tolist()
    content = dict(zip(keys, choose.integers(0, 1 << 31, size).tolist(), strict=True))
    queries = np.array([*keys, *choose.integers(0, highest, 4000).tolist(), 0, highest])
    expected = [content.get(int(key), -1) for key in queries]
    assert IntegerTable(content)(queries).tolist() == expected


def test_keys_with_the_same_hash_are_distinct():
    """Multiples of the inverse of the multiplier: their hashes 0, 1, 2, … share the first slot."""
    inverse = pow(int(MULTIPLIER), -1, 1 << 64)
    keys = [key for i in range(600) if (key := i * inverse % (1 << 64)) < 1 << 63]
    assert len(keys) > 200
    content = {key: i for i, key in enumerate(keys[:100])}
    values = IntegerTable(content)(np.array(keys, np.int64)).tolist()
    assert values == [*range(100), *[-1] * (len(keys) - 100)]
