"""The weights of a directory of transformers: one file, or shards with an index.

They are read from safetensors, without it from pytorch_model.bin (torch_files.py), and without both
from flax_model.msgpack (flax_files.py). Nothing in a file is executed. A tensor is read when it is
asked for, so that memory holds one of them besides the parameters. Shards are never written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 – without it safetensors (0.8) reads no bfloat16
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from seq2seq.files.output_files import sync_to_disk
from seq2seq.files.weight_names import INDEX, OF_TRAINING, WEIGHT_FILES, weight_names
from seq2seq.pretrained.flax_files import FlaxFile, torch_name
from seq2seq.pretrained.json_fields import read_json
from seq2seq.pretrained.torch_files import TorchFile
from seq2seq.pretrained.weight_format import Refused
from seq2seq.runtime.errors import CHECKPOINT, UserError

# The readers of other files than safetensors, by their suffix.
READERS: dict[str, type[TorchFile] | type[FlaxFile]] = {".bin": TorchFile, ".msgpack": FlaxFile}
DTYPES = ("F64", "F32", "F16", "BF16")  # of the weights, as safetensors names them
CONVERT = (
    "if you trust it, convert it with transformers: {}.from_pretrained(DIR).save_pretrained(DIR)"
)
OLD_CONVERT = (
    "convert it with transformers 4: {}.from_pretrained(DIR, {}=True).save_pretrained(DIR)"
)
EXPECTED = f"{', '.join(WEIGHT_FILES[:-1])} or {WEIGHT_FILES[-1]}"
DOWNLOAD = f"download {EXPECTED}, or the shards of one of them with their index"
PICKLES = "*.bin", "*.pt", "*.pth", "*.npz"
UNREAD = ("*.safetensors", "*.msgpack", "*.onnx", "onnx/*.onnx", "*.ot", "*.gguf", "*.tflite")
OTHERS = {  # other files of weights, and what to do; {} is a class of transformers
    **dict.fromkeys(PICKLES, "is not safetensors and is never opened: " + CONVERT),
    "tf_model*.h5": "has weights of TensorFlow: " + OLD_CONVERT.format("{}", "from_tf"),
    **dict.fromkeys(UNREAD, "is not the expected file: " + DOWNLOAD),
}


class WeightFiles:
    """The names and shapes of the tensors of a directory, and the tensors one by one.

    `model_class` of transformers is named in the advice for pickles. UserError(CHECKPOINT) with
    the file if it cannot be read or has tensors that are not floating-point.
    """

    def __init__(self, directory: Path, model_class: str, names: tuple[str, ...] = WEIGHT_FILES):
        self.path = weights_path(directory, names)  # for error messages
        self._model_class = model_class
        files = [self.path]
        stated: dict[str, Path] | None = None
        if self.path.name.endswith(INDEX):
            stated = shards(self.path)
            files = sorted(set(stated.values()))
        self._parsed: dict[Path, TorchFile | FlaxFile] = {}
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            with self._open(path) as file:
                for name in file.keys():
                    tensor = file.get_slice(name)
                    check_dtype(path, name, tensor.get_dtype())
                    if name in self._files:
                        raise UserError(CHECKPOINT, f"{path}: {name} is in {self._files[name]} too")
                    self._files[name] = path
                    self.shapes[name] = tuple(tensor.get_shape())
        if stated is not None and stated != self._files:
            differing = min(n for n, _ in stated.items() ^ self._files.items())
            raise UserError(
                CHECKPOINT,
                f"{self.path} does not fit the shards: expected {differing} in "
                f"{getattr(stated.get(differing), 'name', 'no shard')}, got it in "
                f"{getattr(self._files.get(differing), 'name', 'no shard')}; download all files of "
                "one version",
            )

    def read(self, name: str) -> np.ndarray:
        """A tensor in float32."""
        # The file is opened again: what a mapped file has read counts as memory until it is closed.
        with self._open(self._files[name]) as file:
            array: np.ndarray = file.get_tensor(name)
        return array if array.dtype == np.float32 else array.astype(np.float32)

    @contextmanager
    def _open(self, path: Path) -> Iterator[Any]:
        try:
            if path.suffix in READERS and path.is_file():
                if path not in self._parsed:
                    self._parsed[path] = READERS[path.suffix](path)
                yield self._parsed[path]
                return
            with safe_open(path, framework="np") as file:
                yield file
        except Refused as error:
            raise UserError(
                CHECKPOINT, f"{path} {refusal(path, error, self._model_class)}"
            ) from None
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                CHECKPOINT, f"{path} {unreadable(path, error, self._model_class)}"
            ) from None


# How a family opens the weights of a directory; the second argument is `model_class`.
OpenWeights = Callable[[Path, str], WeightFiles]


def weights_path(directory: Path, names: tuple[str, ...] = WEIGHT_FILES) -> Path:
    """The first file of these names that a directory has, or the index of its shards. It is missing
    if the directory has none."""
    existing = weight_names((path.name for path in directory.glob("*")), names)
    return directory / (existing or names)[0]


def write_weights(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the file of weights, of any size, without another copy of the arrays in memory."""
    path = directory / WEIGHT_FILES[0]
    save_file(arrays, path, {"format": "pt"})
    sync_to_disk(path)


def shards(index: Path) -> dict[str, Path]:
    """The file of each tensor. UserError(CHECKPOINT) if the index is malformed."""
    suffix = Path(index.name.removesuffix(INDEX)).suffix
    places = read_json(index).get("weight_map")
    is_name: Callable[[Any], bool] = lambda file: (  # noqa: E731
        isinstance(file, str) and file.endswith(suffix) and Path(file).name == file
    )
    if not isinstance(places, dict) or not places or not all(map(is_name, places.values())):
        raise UserError(
            CHECKPOINT,
            f"{index} is malformed: expected weight_map, an object of tensors and names of "
            f"{suffix} files in the same directory",
        )
    is_flax = suffix == ".msgpack"
    return {
        torch_name(name.split("/")) if is_flax else name: index.parent / file
        for name, file in places.items()
    }


def check_dtype(path: Path, name: str, dtype: str) -> None:
    """UserError(CHECKPOINT) for a tensor that is not floating-point."""
    if dtype not in DTYPES:
        raise UserError(
            CHECKPOINT,
            f"{path}: {name} has dtype {dtype}: expected one of {', '.join(DTYPES)}; "
            "quantised models are not supported",
        )


def unreadable(path: Path, error: Exception, model_class: str) -> str:
    """Why a file of weights cannot be read, and what to do."""
    if not path.is_file():
        others = [
            f"; {file.relative_to(path.parent)} {reason.format(model_class)}"
            for pattern, reason in OTHERS.items()
            for file in sorted(path.parent.glob(pattern))
            if not file.name.startswith(OF_TRAINING)
        ]
        expected = f": expected {EXPECTED}" if path.name == WEIGHT_FILES[0] else ""
        return f"is missing{expected}{others[0] if others else ''}"
    with open(path, "rb") as file:
        start = file.read(64)
    if reason := no_weights(start):
        return reason
    if start.startswith((b"PK", b"\x80")):
        return f"is a pickle, not safetensors, and is never opened: {CONVERT.format(model_class)}"
    return f"cannot be read: {error}"


def refusal(path: Path, error: Refused, model_class: str) -> str:
    """Why a file of torch or Flax is not read, and what to do."""
    with open(path, "rb") as file:
        start = file.read(64)
    if path.suffix == ".msgpack":
        advice = OLD_CONVERT.format(model_class, "from_flax")
    else:
        advice = CONVERT.format(model_class)
    return no_weights(start) or f"{error}; {advice}"


def no_weights(start: bytes) -> str:
    """What a file is that begins like this and has no weights; empty if it may have them."""
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file; fetch it with git lfs pull"
    if start.lstrip().startswith(b"<"):
        return "is an HTML page, not the file; download it again"
    return ""
