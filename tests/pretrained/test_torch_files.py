"""pytorch_model.bin: the tensors are those that torch wrote; a hostile file executes nothing."""

import os
import random
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from seq2seq.pretrained.torch_files import TorchFile
from seq2seq.pretrained.torch_pickle import FUNCTIONS, NAMES
from seq2seq.pretrained.weight_format import Refused
from tests.support.hostile_torch_files import GOOD, NUMBERS, WRITERS
from tests.support.torch_archive import example, write_archive, write_tensors


def check_tensors(path, expected):
    file = TorchFile(path)
    assert file.keys() == [*expected]
    for name, array in expected.items():
        stored = file.get_tensor(name)
        assert stored.dtype == array.dtype and file.get_slice(name).get_shape() == array.shape
        np.testing.assert_array_equal(stored, array)


def test_views_of_shared_storages_are_read(tmp_path):
    write_tensors(tmp_path / "a.bin", example())
    check_tensors(tmp_path / "a.bin", example())


def test_a_file_of_torch_is_read_bit_for_bit(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.randn(4, 6)
    tensors = torch.nn.Linear(3, 2).state_dict()  # with the versions of modules
    tensors |= {"a": base, "tied": base, "transposed": base.T, "part": base[1:3, 2:5],
                "scalar": base[0, 0], "half": base.half(), "brain": base.bfloat16(),
                "double": base.double(), "parameter": torch.nn.Parameter(base[:, 1:]),
                "expanded": base[:1].expand(3, 6)}  # fmt: skip
    torch.save(tensors, tmp_path / "a.bin")
    file = TorchFile(tmp_path / "a.bin")
    assert file.keys() == [*tensors]
    for name, expected in tensors.items():
        bits = expected.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert file.get_tensor(name).tobytes() == bits
    torch.save(tensors, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(Refused, match="torch before 1.6"):
        TorchFile(tmp_path / "a.bin")


# Cases that a later check would refuse too: the check that must be the first.
FIRST_CHECKS = {
    "os.system": "the name 'os system'",
    "too many operations": "too many operations",
    "a number as a key": "keys are not names",
    "a storage of a negative size": "fields of other types",
    "compressed entries": "compressed entries",
    "a zip bomb": "compressed entries",
    "entries that overlap": "entries overlap",
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_hostile_file_is_refused_and_nothing_is_executed_or_allocated(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for module, function in ((os, "system"), (os, "remove")):
        monkeypatch.setattr(module, function, lambda *_: pytest.fail("executed"))
    path = tmp_path / "pytorch_model.bin"
    WRITERS[name](path)
    # Under the limit of a second while memory is traced, which is several times as slow.
    limited = name not in ("too many operations", "deep nesting")
    if limited:
        tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(Refused) as caught:
            file = TorchFile(path)
            file.get_tensor("a")
        assert time.process_time() - start < 1
        assert not limited or tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert FIRST_CHECKS.get(name, "") in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert [*tmp_path.iterdir()] == [path]


def test_the_file_that_is_made_hostile_is_read(tmp_path):
    write_archive(tmp_path / "a.bin", GOOD, {"0": NUMBERS})
    check_tensors(tmp_path / "a.bin", {"a": np.arange(6, dtype=np.float32).reshape(2, 3)})


def test_the_names_of_a_pickle_are_closed():
    assert len(FUNCTIONS) == 4
    assert {name.split()[0] for name in NAMES} == {"torch", "torch._utils", "collections"}


def test_mutated_files_have_the_right_tensors_or_are_refused(tmp_path):
    path, expected, rng = tmp_path / "a.bin", example(), random.Random(0)
    write_tensors(path, expected)
    original = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        pickle = archive.read("x/data.pkl")
        storages = {
            name.removeprefix("x/data/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("x/data/")
        }
    refused = 0
    for number in range(2000):
        content = bytearray(pickle if number % 2 else original)
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        if number % 2:  # a valid archive with a damaged pickle, whose tensors may be others
            write_archive(path, bytes(content), storages)
        else:
            path.write_bytes(content)
        try:
            if number % 2:
                file = TorchFile(path)
                for name in file.keys():
                    file.get_tensor(name)
            else:
                check_tensors(path, expected)
        except Refused:
            refused += 1
    assert 500 < refused < 2000
