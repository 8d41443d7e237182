"""The pickle in a file of torch.save: tensors as views of storages, without their numbers.

It is hostile until shown otherwise. Python's unpickler is not used: this module interprets the few
operations that a dict of tensors needs, and refuses every other one.

- Nothing is imported or called by name. A name in the file selects an entry of `NAMES`; only those
  of `FUNCTIONS` can be called, and they run code of this module.
- Keys of dicts are strings. The state of an object (BUILD) is ignored. The memo is a dict, so that
  a huge index allocates nothing. The number of operations is bounded.
- A tensor lies within its storage and has no more elements than it.
"""

import pickletools
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from seq2seq.pretrained.weight_format import MOST_DIMENSIONS, Refused

MOST_OPERATIONS = 1 << 18  # a tensor needs about 40


class Name(NamedTuple):
    """A global name of the pickle, one of `NAMES`."""

    text: str


class Storage(NamedTuple):
    """Consecutive numbers, an entry of the archive."""

    entry: str
    type: str  # as safetensors names it
    size: int  # numbers


class View(NamedTuple):
    """A tensor: offset, shape and strides in numbers of its storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def get_shape(self) -> tuple[int, ...]:
        """The shape, as safetensors' slices return it."""
        return self.shape

    def get_dtype(self) -> str:
        """The name of the dtype, as safetensors' slices return it."""
        return self.storage.type


STORAGES = {
    "torch DoubleStorage": "F64", "torch FloatStorage": "F32", "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16", "torch LongStorage": "I64", "torch IntStorage": "I32",
    "torch ShortStorage": "I16", "torch CharStorage": "I8", "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
}  # fmt: skip


def _tensor(arguments: tuple[Any, ...]) -> View:
    # storage, offset, shape, strides, requires_grad, hooks, and sometimes metadata
    if len(arguments) not in (6, 7) or not isinstance(arguments[0], Storage):
        raise Refused("is malformed: a tensor has other arguments than torch writes")
    view = View(*arguments[:4])
    numbers = (view.shape, view.strides)
    if not all(type(x) is tuple and len(x) <= MOST_DIMENSIONS for x in numbers) or not all(
        type(x) is int and 0 <= x < 1 << 62 for x in (view.offset, *view.shape, *view.strides)
    ):
        raise Refused("is malformed: a tensor has an invalid offset, shape or strides")
    if len(view.shape) != len(view.strides) or 0 in view.shape:
        raise Refused("is malformed: a tensor is empty, or has a stride too many or too few")
    last = sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
    if view.offset + last >= view.storage.size or prod(view.shape) > view.storage.size:
        raise Refused("is malformed: a tensor is not within its storage")
    return view


def _parameter(arguments: tuple[Any, ...]) -> View:
    if len(arguments) != 3 or not isinstance(arguments[0], View):
        raise Refused("is malformed: a parameter has other arguments than torch writes")
    return arguments[0]


def _ordered_dict(arguments: tuple[Any, ...]) -> dict[str, Any]:
    if arguments:
        raise Refused("is malformed: an OrderedDict has arguments")
    return {}


def _size(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(arguments) != 1 or type(arguments[0]) is not tuple:
        raise Refused("is malformed: torch.Size has other arguments than torch writes")
    return arguments[0]


FUNCTIONS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "collections OrderedDict": _ordered_dict,
    "torch Size": _size,
}
NAMES = {*FUNCTIONS, *STORAGES}


class Machine:
    """The stack, the marks and the memo of a pickle, and a method for each kind of operation."""

    def __init__(self, prefix: str):
        self._prefix = prefix  # of the names of entries
        self._stack: list[Any] = []
        self._marks: list[int] = []  # the height of the stack at each mark
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """The object of a pickle. Refused for any operation that a dict of tensors does not need.

        IndexError or KeyError if an operation uses an absent item of the stack or the memo.
        """
        for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if count == MOST_OPERATIONS:
                raise Refused("is malformed: its pickle has too many operations")
            if operation.name == "STOP":
                return self._stack.pop()
            self._execute(operation.name, argument)
        raise Refused("is malformed: its pickle is truncated")

    def _execute(self, operation: str, argument: Any) -> None:
        stack = self._stack
        match operation:
            case "PROTO":
                if argument > 4:
                    raise Refused(f"has a pickle of the unsupported protocol {argument}")
            case "FRAME":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[operation])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(self._to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._top(int(operation[-1]))))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                self._push_name(argument)
            case "STACK_GLOBAL":
                self._push_name(" ".join(map(str, self._top(2))) if self._are_texts() else "")
            case "BINPERSID":
                stack.append(self._storage(stack.pop()))
            case "REDUCE":
                stack.append(self._call(*self._top(2)))
            case "SETITEM":
                self._set(self._top(2))
            case "SETITEMS":
                self._set(self._to_mark())
            case "BUILD":
                stack.pop()  # the versions of the modules
                if type(stack[-1]) is not dict:
                    raise Refused("is refused: its pickle changes the state of an object")
            case _:
                raise Refused(f"is refused: its pickle has the operation {operation}")

    def _top(self, count: int) -> list[Any]:
        if len(self._stack) - count < (self._marks[-1] if self._marks else 0):
            raise IndexError("the stack is empty")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _to_mark(self) -> list[Any]:
        height = self._marks.pop()
        taken = self._stack[height:]
        del self._stack[height:]
        return taken

    def _are_texts(self) -> bool:
        return len(self._stack) > 1 and all(type(x) is str for x in self._stack[-2:])

    def _push_name(self, text: str) -> None:
        if text not in NAMES:
            raise Refused(f"is refused: its pickle has the name {text[:60]!r}; weights need none")
        self._stack.append(Name(text))

    def _call(self, function: Any, arguments: Any) -> Any:
        if (
            type(function) is not Name
            or function.text not in FUNCTIONS
            or type(arguments) is not tuple
        ):
            raise Refused("is refused: its pickle calls what is no function of a tensor")
        return FUNCTIONS[function.text](arguments)

    def _set(self, items: list[Any]) -> None:
        target, keys = self._stack[-1], items[::2]
        if type(target) is not dict or len(items) % 2 or not all(type(x) is str for x in keys):
            raise Refused("is refused: its pickle has a dict whose keys are not names")
        target.update(zip(keys, items[1::2], strict=True))

    def _storage(self, identity: Any) -> Storage:
        if type(identity) is not tuple or len(identity) != 5:
            raise Refused("is malformed: expected a storage of five fields")
        kind, storage, key, location, size = identity
        types = (type(kind), type(storage), type(key), type(location), type(size))
        if types != (str, Name, str, str, int) or kind != "storage" or size < 0:
            raise Refused("is malformed: a storage has fields of other types than torch writes")
        if storage.text not in STORAGES:
            raise Refused(f"is malformed: {storage.text!r} is no class of storages")
        return Storage(f"{self._prefix}/data/{key}", STORAGES[storage.text], size)
