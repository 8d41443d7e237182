"""Row 18: damaged and malicious MarianMT directories are refused; nothing in them is executed."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.forked import call_forked
from tests.support.models.tiny_marian import write_marian

ROOT = Path(__file__).parent.parent.parent
NAME = "model.decoder.layers.1.fc1.weight"


class Payload:
    """Unpickling it creates a directory."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


# Each fault is a function of the model directory and of the path that a payload would create.


def half_of_the_weights(path, marker):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[: len(content) // 2])


def part_of_the_header(path, marker):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:100])


def no_weights(path, marker):
    (path / "model.safetensors").write_bytes(b"")


def html_weights(path, marker):
    (path / "model.safetensors").write_text("<!doctype html><title>404</title>" * 9)


def lfs_weights(path, marker):
    (path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"
    )


def html_config(path, marker):
    (path / "config.json").write_text("<!doctype html><title>404</title>")


def lfs_vocabulary(path, marker):
    (path / "vocab.json").write_text("version https://git-lfs.github.com/spec/v1\n")


def changed_tensors(change):
    """The fault that calls `change` with the dictionary of tensors."""

    def fault(path, marker):
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})

    return fault


def wrong_shape(tensors):
    tensors[NAME] = np.zeros((37, 25), np.float32)


def transposed(tensors):
    tensors[NAME] = np.ascontiguousarray(tensors[NAME].T)


def missing(tensors):
    del tensors[NAME]


def extra(tensors):
    tensors[f"{NAME}_too"] = np.zeros(3, np.float32)


def quantised(tensors):
    tensors[NAME] = tensors[NAME].astype(np.int8)


def different_copy(tensors):
    tensors["lm_head.weight"] = tensors["model.shared.weight"] + np.float32(1)


def pickled_weights(name, torch=False):
    """The fault that replaces the weights by a pickle, as torch saves it (a zip archive) or
    plain."""

    def fault(path, marker):
        (path / "model.safetensors").unlink()
        content = pickle.dumps(Payload(marker))
        if torch:
            with zipfile.ZipFile(path / name, "w") as file:
                file.writestr("archive/data.pkl", content)
        else:
            (path / name).write_bytes(content)

    return fault


FAULTS = {  # description → (fault, the part of the error message that names it)
    "truncated weights": (half_of_the_weights, "model.safetensors"),
    "weights truncated in the header": (part_of_the_header, "model.safetensors"),
    "an empty file of weights": (no_weights, "model.safetensors"),
    "an HTML page in place of the weights": (html_weights, "HTML page"),
    "an LFS pointer in place of the weights": (lfs_weights, "git lfs pull"),
    "an HTML page in place of config.json": (html_config, "config.json"),
    "an LFS pointer in place of vocab.json": (lfs_vocabulary, "vocab.json"),
    "a tensor of another shape": (changed_tensors(wrong_shape), NAME),
    "a transposed tensor": (changed_tensors(transposed), NAME),
    "a missing tensor": (changed_tensors(missing), NAME),
    "an extra tensor": (changed_tensors(extra), f"{NAME}_too"),
    "a quantised tensor": (changed_tensors(quantised), NAME),
    "a copy with other values": (changed_tensors(different_copy), "lm_head.weight"),
    "pytorch_model.bin only": (pickled_weights("pytorch_model.bin"), "pytorch_model.bin"),
    "a malicious pytorch_model.bin": (
        pickled_weights("pytorch_model.bin", torch=True),
        "pytorch_model.bin is refused: its pickle has the ",
    ),
    "model.pt only": (pickled_weights("model.pt", torch=True), "model.pt"),
    "a pickle named model.safetensors": (pickled_weights("model.safetensors"), "model.safetensors"),
    "a torch archive named model.safetensors": (
        pickled_weights("model.safetensors", torch=True),
        "model.safetensors",
    ),
}


@pytest.mark.row(
    18,
    "damaged and malicious MarianMT directories: truncated files, HTML pages, LFS pointers, wrong "
    "tensors, pickles",
    "exit 4 naming the file and the tensor; no payload is executed",
)
def test_a_damaged_marian_directory_is_refused_and_nothing_in_it_is_executed(
    tmp_path, record_property
):
    pickle.loads(pickle.dumps(Payload(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()  # the payload works when it is unpickled
    messages, run = {}, tmp_path / "run"
    for number, (name, (fault, expected)) in enumerate(FAULTS.items()):
        path, marker = tmp_path / str(number), tmp_path / f"marker{number}"
        write_marian(path)
        fault(path, marker)
        commands = [("decode.py", f"--workdir={path}")]
        if name == "pytorch_model.bin only":
            commands.append(("scripts/convert.py", f"--from_model={path}", f"--to={run}"))
        for script, *arguments in commands:
            done = call_forked([ROOT / script, *arguments], b"a line\n", devices=0)
            context = f"{script} with {name}: {done.err}"
            assert done.code == 4, context
            assert done.out == "" and len(done.err) == 1, context
            assert expected in done.err[0] and str(path) in done.err[0], context
            assert not marker.exists() and not run.exists(), context
        messages[name] = done.err[0].removeprefix("error: ").replace(str(path), "DIRECTORY")
    example = messages["a tensor of another shape"]
    record_property("seen", f"{len(messages)} of {len(FAULTS)}, as in “{example}”")
