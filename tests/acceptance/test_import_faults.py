"""Row 18: damaged or malicious MarianMT directories exit with code 4; nothing in them is run."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from forked import call_forked
from safetensors.numpy import load_file, save_file
from tiny_marian import write_marian

ROOT = Path(__file__).parent.parent.parent
NAME = "model.decoder.layers.1.fc1.weight"


class Payload:
    """Unpickling it creates a directory."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def truncated(path, marker):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[: len(content) // 2])


def header_cut(path, marker):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:100])


def empty(path, marker):
    (path / "model.safetensors").write_bytes(b"")


def html_page(path, marker):
    (path / "model.safetensors").write_text("<!doctype html><title>404</title>" * 9)


def lfs_pointer(path, marker):
    (path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"
    )


def html_config(path, marker):
    (path / "config.json").write_text("<!doctype html><title>404</title>")


def lfs_vocabulary(path, marker):
    (path / "vocab.json").write_text("version https://git-lfs.github.com/spec/v1\n")


def changed(path, change):
    there = load_file(path / "model.safetensors")
    change(there)
    save_file(there, path / "model.safetensors", {"format": "pt"})


def wrong_shape(path, marker):
    changed(path, lambda there: there.update({NAME: np.zeros((37, 25), np.float32)}))


def transposed(path, marker):
    changed(path, lambda there: there.update({NAME: np.ascontiguousarray(there[NAME].T)}))


def missing_tensor(path, marker):
    changed(path, lambda there: there.pop(NAME))


def extra_tensor(path, marker):
    changed(path, lambda there: there.update({f"{NAME}_too": np.zeros(3, np.float32)}))


def wrong_copy(path, marker):
    changed(
        path,
        lambda there: there.update(
            {"lm_head.weight": there["model.shared.weight"] + np.float32(1)}
        ),
    )


def integers(path, marker):
    changed(path, lambda there: there.update({NAME: there[NAME].astype(np.int8)}))


def pickle_of(name, instead=False):
    def fault(path, marker):
        (path / "model.safetensors").unlink()
        target = path / ("model.safetensors" if instead else name)
        if name.endswith(".pt"):  # as torch saves: a zip with a pickle inside
            with zipfile.ZipFile(target, "w") as file:
                file.writestr("archive/data.pkl", pickle.dumps(Payload(marker)))
        else:
            target.write_bytes(pickle.dumps(Payload(marker)))

    return fault


FAULTS = {  # the fault, and the part of the error message that names it
    "truncated safetensors": (truncated, "model.safetensors"),
    "safetensors cut in its header": (header_cut, "model.safetensors"),
    "empty safetensors": (empty, "model.safetensors"),
    "an HTML page as weights": (html_page, "HTML page"),
    "an LFS pointer as weights": (lfs_pointer, "git lfs pull"),
    "an HTML page as config.json": (html_config, "config.json"),
    "an LFS pointer as vocab.json": (lfs_vocabulary, "vocab.json"),
    "a wrong shape": (wrong_shape, NAME),
    "a transposed tensor": (transposed, NAME),
    "a missing tensor": (missing_tensor, NAME),
    "an extra tensor": (extra_tensor, f"{NAME}_too"),
    "a quantised tensor": (integers, NAME),
    "a copy that is none": (wrong_copy, "lm_head.weight"),
    "a pickle pytorch_model.bin": (pickle_of("pytorch_model.bin"), "pytorch_model.bin"),
    "a pickle model.pt": (pickle_of("model.pt"), "model.pt"),
    "a pickle named safetensors": (pickle_of("x.bin", instead=True), "model.safetensors"),
    "a torch zip named safetensors": (pickle_of("x.pt", instead=True), "model.safetensors"),
}


@pytest.mark.row(
    18,
    "damaged MarianMT directories: safetensors, HTML, LFS, shapes, pickles",
    "exit code 4 naming file and tensor; a payload never runs",
)
def test_a_damaged_import_is_refused_by_name_and_runs_nothing(tmp_path, record_property):
    seen, out = {}, tmp_path / "out"
    pickle.loads(pickle.dumps(Payload(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()  # so it does something where it is loaded
    for number, (fault, (damage, named)) in enumerate(FAULTS.items()):
        path, marker = tmp_path / str(number), tmp_path / f"marker{number}"
        write_marian(path)
        damage(path, marker)
        commands = [("decode.py", f"--workdir={path}")]
        if "pytorch_model" in fault:
            commands.append(("scripts/convert.py", f"--from_marian={path}", f"--to={out}"))
        for script, *arguments in commands:
            done = call_forked([ROOT / script, *arguments], b"a line\n", devices=0)
            where = f"{fault}, {script}: {done.err}"
            assert done.code == 4, where
            assert done.out == "" and len(done.err) == 1, where
            assert named in done.err[0] and str(path) in done.err[0], where
            assert not marker.exists() and not out.exists(), where
        seen[fault] = done.err[0].replace(str(path), "DIR")
    record_property("seen", json.dumps(seen, ensure_ascii=False))
