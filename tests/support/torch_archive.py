"""Files as torch.save writes them, made without torch: pickles of tensors in archives."""

import struct
import zipfile

import numpy as np

CLASSES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage", "int64": "LongStorage", "int8": "CharStorage",
}  # fmt: skip
START = b"\x80\x02ccollections\nOrderedDict\n)R"  # of the pickle: an empty dict on the stack
END = b"}X\x09\x00\x00\x00_metadata}sb."  # the versions of the modules, then the end


def text(value):
    """The operation that pushes a str."""
    content = value.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def integer(value):
    """The operation that pushes an int."""
    return b"\x8a\x08" + struct.pack("<q", value)


def integers(values):
    """The operations that push a tuple of ints."""
    return b"(" + b"".join(map(integer, values)) + b"t"


def storage(key, size, kind="FloatStorage", location="cpu"):
    """The operations that push a storage of `size` numbers."""
    return (
        b"("
        + text("storage")
        + f"ctorch\n{kind}\n".encode()
        + text(key)
        + text(location)
        + (integer(size) + b"tQ")
    )


def tensor(stored, offset, shape, strides):
    """The operations that push a tensor, with those of its storage."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + stored + integer(offset) + integers(shape)
        + integers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def write_archive(path, pickle, storages, byteorder=b"little", others=(), compression=0):
    """Writes the archive of a pickle and of storages by key."""
    entries = {"x/data.pkl": pickle, "x/byteorder": byteorder, "x/version": b"3\n"}
    entries |= {f"x/data/{key}": content for key, content in storages.items()} | dict(others)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)


def write_tensors(path, arrays):
    """Writes arrays by name. Arrays that are views of one array share its storage."""
    keys, storages, items = {}, {}, b""
    for name, array in arrays.items():
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        key = keys.setdefault(id(whole), str(len(keys)))
        storages[key] = whole.tobytes()
        offset = (array.ctypes.data - whole.ctypes.data) // array.itemsize
        strides = [step // array.itemsize for step in array.strides]
        stored = storage(key, whole.size, CLASSES[array.dtype.name])
        items += text(name) + tensor(stored, offset, array.shape, strides)
    write_archive(path, START + b"(" + items + b"u" + END, storages)


def example():
    """Arrays of all kinds: shared, transposed, with an offset, a scalar."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6).copy()
    return {"a": base, "b": base, "transposed": base.T, "part": base[1:3, 2:5],
            "scalar": np.array(2.5, np.float64), "half": base.astype(np.float16)}  # fmt: skip
