"""Hostile files in the form of torch.save's: pickles, archives and damaged bytes."""

import struct
import zipfile

import numpy as np

from seq2seq.pretrained.torch_files import OLD_MAGIC
from tests.support.torch_archive import (
    END,
    START,
    integer,
    integers,
    storage,
    tensor,
    text,
    write_archive,
)

NUMBERS = np.arange(6, dtype=np.float32).tobytes()
SIX = storage("0", 6)


def one(view):
    """The pickle of a dict with one tensor."""
    return START + text("a") + view + b"s" + END


def named(name):
    return b"c" + name.encode() + b"\n"


SYSTEM = named("os\nsystem") + b"(" + text("touch sentinel") + b"tR"
NESTED = named("torch._utils\n_rebuild_tensor_v2") + b"(" + SYSTEM + b"tR"
HOSTILE = {  # pickles
    "os.system": b"\x80\x02" + SYSTEM + b".",
    "posix.system in a dict": one(SYSTEM.replace(b"os\n", b"posix\n")),
    "eval": one(named("builtins\neval") + b"(" + text("1") + b"tR"),
    "a nested call": one(NESTED),
    "an attribute of a module": one(named("torch._utils\n_rebuild_tensor_v2.__globals__")),
    "a name with a space": one(named("torch Size\n")),
    "a name without a module": one(named("\nOrderedDict")),
    "a STACK_GLOBAL": one(text("os") + text("system") + b"\x93" + b"(" + text("1") + b"tR"),
    "a STACK_GLOBAL of numbers": one(integer(1) + integer(2) + b"\x93"),
    "INST": one(b"(" + text("1") + b"ios\nsystem\n"),
    "OBJ": one(b"(" + named("os\nsystem") + text("1") + b"o"),
    "OBJ of a storage": one(b"(" + named("torch\nFloatStorage") + b"o"),
    "NEWOBJ": one(named("collections\nOrderedDict") + b")\x81"),
    "NEWOBJ_EX": one(named("collections\nOrderedDict") + b")}\x92"),
    "EXT": one(b"\x82\x01"),
    "PERSID": one(b"P0\n"),
    "a list": one(b"]" + text("a") + b"a"),
    "BYTEARRAY8": one(b"\x96" + struct.pack("<Q", 1 << 60)),
    "BINUNICODE8": one(b"\x8d" + struct.pack("<Q", 1 << 60)),
    "a long of 2 GB": one(b"\x8b" + struct.pack("<i", (1 << 31) - 1)),
    "the state of a name": one(named("collections\nOrderedDict") + b"}b"),
    "the state of a tensor": one(tensor(SIX, 0, (6,), (1,)) + b"}b"),
    "a call of a storage": one(named("torch\nFloatStorage") + b")R"),
    "a call of a text": one(text("os.system") + b")R"),
    "arguments that are no tuple": one(named("torch\nSize") + b"}R"),
    "a dict in itself": START + b"q\x00" + text("a") + b"h\x00s.",
    "a tuple in itself": one(b"(" + b"q\x00h\x00t"),
    "a number as a key": START + integer(1) + integer(1) + b"s" + END,
    "exponential tuples as a key": START + b")q\x00" + b"h\x00\x86q\x00" * 60 + integer(1) + b"s.",
    "exponential tuples": one(b")q\x00" + b"h\x00\x86q\x00" * 60),
    "a huge index of the memo": one(b")r\xff\xff\xff\xff") + b"",
    "an absent index of the memo": one(b"j\xff\xff\xff\xff"),
    "deep nesting": one(b")" + b"\x85" * 100_000),
    "too many operations": one(b")" * 300_000),
    "marks alone": b"\x80\x02" + b"(" * 1000 + b"t" * 2000 + b".",
    "no STOP": one(tensor(SIX, 0, (6,), (1,)))[:-1],
    "no content": b".",
    "a text": text("a") + b".",
    "a nested dict": one(b"}"),
    "an unknown protocol": b"\x80\x05}.",
    "a huge shape": one(tensor(SIX, 0, (1 << 40, 1 << 40), (0, 0))),
    "a huge expanded shape": one(tensor(SIX, 0, (1 << 40,), (0,))),
    "an overflowing shape": one(tensor(SIX, 0, (1 << 62, 4), (4, 1))),
    "a negative dimension": one(tensor(SIX, 0, (-1, -6), (1, 1))),
    "a negative stride": one(tensor(SIX, 5, (6,), (-1,))),
    "a negative offset": one(tensor(SIX, -1, (2,), (1,))),
    "an offset beyond the storage": one(tensor(SIX, 6, (1,), (1,))),
    "a view beyond the storage": one(tensor(SIX, 1, (2, 3), (3, 1))),
    "a stride beyond the storage": one(tensor(SIX, 0, (2,), (6,))),
    "too many dimensions": one(tensor(SIX, 0, (1,) * 9, (1,) * 9)),
    "an empty tensor": one(tensor(SIX, 0, (0, 1 << 60), (1, 1))),
    "strides that are too few": one(tensor(SIX, 0, (2, 3), (1,))),
    "a shape of texts": one(tensor(SIX, 0, (), ()).replace(integers(()), text("a"))),
    "no storage": one(tensor(b"N", 0, (1,), (1,))),
    "a storage that is a number": one(integer(1) + b"Q"),
    "a storage with a number as key": one(
        tensor(SIX.replace(text("0"), integer(0)), 0, (1,), (1,))
    ),
    "a storage of another class": one(tensor(storage("0", 6, "Size"), 0, (1,), (1,))),
    "a storage of an unknown class": one(tensor(storage("0", 6, "QInt8Storage"), 0, (1,), (1,))),
    "a storage of a negative size": one(tensor(storage("0", -6), 0, (1,), (1,))),
    "a storage larger than its entry": one(tensor(storage("0", 7), 0, (7,), (1,))),
    "a storage of 1 TB": one(tensor(storage("0", 1 << 38), 0, (1 << 38,), (1,))),
    "a storage without an entry": one(tensor(storage("1", 6), 0, (6,), (1,))),
    "a storage elsewhere": one(tensor(storage("../x/data/0", 6), 0, (6,), (1,))),
}  # fmt: skip
GOOD = one(tensor(SIX, 0, (2, 3), (3, 1)))
ARCHIVES = {  # arguments of write_archive
    "big-endian": {"byteorder": b"big"},
    "compressed entries": {"compression": zipfile.ZIP_DEFLATED},
    "a zip bomb": {"others": {"x/data/1": bytes(1 << 24)}, "compression": zipfile.ZIP_DEFLATED},
    "LZMA": {"compression": zipfile.ZIP_LZMA},
    "a path that leaves the archive": {"others": {"../../sentinel": b"1"}},
    "an absolute path": {"others": {"/tmp/sentinel": b"1"}},
    "a path within the data": {"others": {"x/data/../../sentinel": b"1"}},
    "TorchScript": {"others": {"x/code/__torch__.py": b"1"}},
    "a large pickle": {"pickle": GOOD + bytes(1 << 22)},
}


def changed_bytes(change):
    """The fault of an archive whose bytes are changed."""

    def write(path):
        write_archive(path, GOOD, {"0": NUMBERS})
        path.write_bytes(change(path.read_bytes()))

    return write


CHANGED = {  # functions of the path
    "an empty file": changed_bytes(lambda x: b""),
    "a truncated archive": changed_bytes(lambda x: x[: len(x) // 2]),
    "an archive without its last byte": changed_bytes(lambda x: x[:-1]),
    "the format before torch 1.6": changed_bytes(lambda x: OLD_MAGIC + x),
    "another number": changed_bytes(lambda x: x.replace(NUMBERS, NUMBERS[::-1])),
    "encrypted entries": changed_bytes(
        lambda x: x.replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1")
    ),
    "another name in a header": changed_bytes(lambda x: x.replace(b"x/data/0", b"x/data/1", 1)),
    "no local header": changed_bytes(lambda x: x.replace(b"PK\3\4", b"PK\3\5", 1)),
}  # fmt: skip


def larger_entry(content):
    """The archive with a directory in which the last entry reaches into what follows it."""
    sizes = content.rindex(b"x/data/0") - 46 + 20
    return content[:sizes] + struct.pack("<II", 60, 60) + content[sizes + 8 :]


CHANGED["entries that overlap"] = changed_bytes(larger_entry)
WRITERS = {
    **{name: (lambda path, pickle=pickle: write_archive(path, pickle, {"0": NUMBERS}))
       for name, pickle in HOSTILE.items()},
    **{name: (lambda path, options=options: write_archive(
        path, **{"pickle": GOOD, "storages": {"0": NUMBERS}, **options}))
       for name, options in ARCHIVES.items()},
    **CHANGED,
}  # fmt: skip
