"""The parts of benchmarks/accelerator.py, in the order in which they run."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.parts.attention import attention_rows
from benchmarks.parts.decoding import decoding_rows, engine_rows
from benchmarks.parts.decoding_peers import ctranslate2_rows, hf_rows
from benchmarks.parts.operations import operations_rows
from benchmarks.parts.peak import peak_rows
from benchmarks.parts.training import training_rows
from benchmarks.parts.training_peer import torch_training_rows

BEAMS = {"beam4": 4, "greedy": 1}


class Part(NamedTuple):
    """A part: `rows(sizes, deadline, *arguments)` yields its rows. Consecutive parts of the same
    program run in one process."""

    name: str
    rows: Callable[..., Iterator[dict[str, Any]]]
    arguments: tuple[Any, ...]
    program: str  # JAX, or the key of its packages in benchmarks/parts/peers.py

    @property
    def table(self) -> str:
        """The table to which its rows belong."""
        return self.name.partition(":")[0]


def training_part(size: str, dtype: str) -> Part:
    return Part(f"training:{size}:{dtype}:ours", training_rows, (size, dtype), "JAX")


def torch_part(size: str) -> Part:
    name = f"training:{size}:bfloat16:PyTorch"
    return Part(name, torch_training_rows, (size,), "PyTorch")


def search_part(size: str, search: str, program: str) -> Part:
    rows, library = {
        "ours": (decoding_rows, "JAX"),
        "engine": (engine_rows, "JAX"),
        "CTranslate2": (ctranslate2_rows, "CTranslate2"),
        "HF": (hf_rows, "HF generate"),
    }[program]
    return Part(f"decoding:{size}:{search}:{program}", rows, (size, BEAMS[search]), library)


def operations_part(size: str, search: str) -> Part:
    return Part(f"operations:{size}:{search}", operations_rows, (size, BEAMS[search]), "JAX")


# The most important ones first: the time may not suffice for all. A change of the program costs a
# start of a process.
PARTS = [
    Part("peak", peak_rows, (), "JAX"),
    training_part("base", "bfloat16"),
    search_part("opus", "beam4", "ours"),
    training_part("big", "bfloat16"),
    search_part("opus", "greedy", "ours"),
    *[search_part("opus", search, "CTranslate2") for search in BEAMS],
    *[torch_part(size) for size in ("base", "big")],
    Part("attention", attention_rows, (), "JAX"),
    *[search_part("opus", search, "engine") for search in BEAMS],
    *[training_part(size, dtype) for dtype in ("mixed", "float32") for size in ("base", "big")],
    *[search_part("base", search, "ours") for search in BEAMS],
    *[training_part("small", dtype) for dtype in ("bfloat16", "mixed", "float32")],
    *[search_part("small", search, "ours") for search in BEAMS],
    *[operations_part(size, search) for size in ("opus", "base", "small") for search in BEAMS],
    *[search_part(size, search, "CTranslate2") for size in ("base", "small") for search in BEAMS],
    torch_part("small"),
    *[search_part(size, search, "HF") for size in ("opus", "base", "small") for search in BEAMS],
]


def chosen_parts(names: list[str]) -> list[Part]:
    """The parts whose name contains one of these texts; all without any."""
    return [part for part in PARTS if not names or any(name in part.name for name in names)]
