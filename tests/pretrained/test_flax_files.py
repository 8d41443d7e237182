"""flax_model.msgpack: the arrays are those that Flax wrote; a hostile file allocates nothing."""

import random
import struct
import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from flax import serialization

from seq2seq.pretrained.flax_files import FlaxFile
from seq2seq.pretrained.weight_format import Refused

BASE = np.arange(24, dtype=np.float32).reshape(4, 6)
TREE = {
    "final_logits_bias": BASE[:1],
    "model": {
        "shared": {"embedding": BASE.astype(np.float16)},
        "layers": {"0": {"fc1": {"kernel": BASE, "bias": BASE[0].astype(np.float64)}}},
        "norm": {"scale": BASE[1].astype(ml_dtypes.bfloat16)},
        "other": {"weight": BASE[2, :1], "scalar": np.asarray(2.5, np.float32)},
    },
}
EXPECTED = {
    "final_logits_bias": BASE[:1],
    "model.shared.weight": BASE.astype(np.float16),
    "model.layers.0.fc1.weight": BASE.T,
    "model.layers.0.fc1.bias": BASE[0].astype(np.float64),
    "model.norm.weight": BASE[1].astype(ml_dtypes.bfloat16),
    "model.other.weight": BASE[2, :1],
    "model.other.scalar": np.asarray(2.5, np.float32),
}


@pytest.mark.parametrize("chunk", [2**30, 16])
def test_a_file_of_flax_is_read_bit_for_bit_also_in_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", chunk)
    path = tmp_path / "a.msgpack"
    path.write_bytes(serialization.to_bytes(TREE))
    assert (b"__msgpack_chunked_array__" in path.read_bytes()) == (chunk == 16)
    file = FlaxFile(path)
    assert sorted(file.keys()) == sorted(EXPECTED)
    for name, expected in EXPECTED.items():
        stored = file.get_tensor(name)
        assert stored.dtype == expected.dtype
        assert file.get_slice(name).get_shape() == stored.shape == expected.shape
        assert stored.tobytes() == expected.tobytes()


def text(value):
    return b"\xd9" + bytes([len(value)]) + value.encode()


def array(shape=(2,), dtype="float32", content=bytes(8), code=1, stated=None, fields=3):
    """The extension type of an array, as Flax writes it."""
    sizes = b"".join(b"\xcf" + struct.pack(">Q", size) for size in shape)
    data = bytes([0x90 + fields, 0x90 + len(shape)]) + sizes + text(dtype)
    data += b"\xc6" + struct.pack(">I", len(content)) + content
    return b"\xc9" + struct.pack(">Ib", len(data) if stated is None else stated, code) + data


def tree(*items):
    """A map of keys and values, by turns."""
    return bytes([0x80 + len(items) // 2]) + b"".join(
        text(item) if isinstance(item, str) else item for item in items
    )


def chunked(shape, *chunks, last="chunks"):
    items = [part for i, chunk in enumerate(chunks) for part in (str(i), chunk)]
    sizes = [part for i, size in enumerate(shape) for part in (str(i), bytes([size]))]
    return tree("__msgpack_chunked_array__", b"\xc3", "shape", tree(*sizes), last, tree(*items))


GOOD = tree("a", tree("kernel", array()))
HOSTILE = {
    "nothing": (b"", "is empty"),
    "no tree": (array(), "expected the msgpack type map, got extension"),
    "a list": (b"\xdd\xff\xff\xff\xff", "expected the msgpack type map, got list"),
    "a map of 4 billion keys": (b"\xdf\xff\xff\xff\xff" + GOOD[1:], "ends after the file"),
    "lists in lists": (tree("a", b"\xdd\xff\xff\xff\xff" * 1000), "other content than arrays: a"),
    "a deep tree": (b"\x81\xa1a" * 100_000, "deeper than"),
    "many keys": (b"\xdf\x00\x0f\xff\xff" + b"\xa1a\x80" * (1 << 20), "too many keys"),
    "a text of 4 GB": (b"\x81\xdb\xff\xff\xff\xff", "no name"),
    "a key with a line break": (tree("a\nb", array()), "no name"),
    "an array of 4 GB": (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "ends after the file"),
    "a number": (tree("a", b"\x07"), "other content than arrays: a"),
    "a float": (tree("a", b"\xcb" + bytes(8)), "the msgpack type 0xcb"),
    "nil": (tree("a", b"\xc0"), "the msgpack type 0xc0"),
    "a complex number": (tree("a", array(code=2)), "the extension type 2"),
    "a scalar of NumPy": (tree("a", array(code=3)), "the extension type 3"),
    "another extension": (tree("a", array(code=99)), "the extension type 99"),
    "a dtype of objects": (tree("a", array(dtype="object")), "arrays of dtype object"),
    "a structured dtype": (tree("a", array(dtype="O,f4")), "no name"),
    "integers": (tree("a", array(dtype="int8")), "arrays of dtype int8"),
    "a huge shape": (tree("a", array(shape=(1 << 62, 1 << 62))), "another size than its shape"),
    "an empty array": (tree("a", array(shape=(0,), content=b"")), "is empty or has"),
    "a shape of 9 dimensions": (tree("a", array(shape=(1,) * 9)), "9 dimensions"),
    "too little content": (tree("a", array(content=bytes(4))), "another size than its shape"),
    "too few fields": (tree("a", array(fields=2)), "other fields than Flax writes"),
    "an array larger than stated": (tree("a", array(stated=9)), "another size than stated"),
    "the same name twice": (tree("a", array(), "a", array()), "has a twice"),
    "a kernel and a weight": (
        tree("a", tree("kernel", array(), "weight", array())), "has a.weight twice",
    ),
    "bytes after the tree": (GOOD + b"\x00", "ends before the file"),
    "chunks of another size": (tree("a", chunked((5,), array(), array())), "than its shape"),
    "chunks of two dtypes": (
        tree("a", chunked((4,), array(), array(dtype="float16", content=bytes(4)))), "differ",
    ),
    "chunks in another order": (
        tree("a", tree("__msgpack_chunked_array__", b"\xc3", "shape", tree("0", b"\x02"),
                       "chunks", tree("1", array()))), "another order",
    ),
    "no chunks": (tree("a", chunked((2,))), "differ"),
    "chunks without a name": (tree("a", chunked((2,), array(), last="parts")), "has none"),
    "the root in chunks": (chunked((2,), array()), "the msgpack type 0xc3"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_nothing_is_allocated(name, tmp_path):
    content, message = HOSTILE[name]
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(content)
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match=message) as caught:
            FlaxFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 1
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_the_files_that_are_made_hostile_are_read(tmp_path):
    path = tmp_path / "a.msgpack"
    for content in (GOOD, tree("a", tree("kernel", chunked((1, 4), array(), array())))):
        path.write_bytes(content)
        expected = serialization.msgpack_restore(content)["a"]["kernel"].T
        np.testing.assert_array_equal(FlaxFile(path).get_tensor("a.weight"), expected)


def test_mutated_and_truncated_files_have_the_right_sizes_or_are_refused(tmp_path):
    """Flax stores no checksums, so that changed numbers are not found."""
    path, rng, original = tmp_path / "a.msgpack", random.Random(0), serialization.to_bytes(TREE)
    refused = 0
    for number in range(2000):
        content = bytearray(original)
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: number + 1 if number < len(content) else None])
        try:
            file = FlaxFile(path)
        except Refused:
            refused += 1
        else:
            arrays = [file.get_tensor(name) for name in file.keys()]
            assert sum(array.nbytes for array in arrays) < len(content)
    assert 500 < refused < 2000
