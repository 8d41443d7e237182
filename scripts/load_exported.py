"""Translate with a file of scripts/export.py. Needs jax, numpy, sentencepiece and flatbuffers.

python FILE < source.txt > target.txt   (FILE contains this script; or python load_exported.py FILE)
"""

import json
import os
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from sentencepiece import SentencePieceProcessor


class Exported:
    """`translate(lines)` returns the translation of each line; that of a blank line is blank."""

    def __init__(self, path: str) -> None:
        replicated = jax.NamedSharding(jax.sharding.Mesh(jax.local_devices(), "devices"), jax.P())
        with zipfile.ZipFile(path) as file:
            self.card = json.loads(file.read("card.json"))
            self.source, self.target = (
                SentencePieceProcessor(model_proto=file.read(x)) for x in self.card["tokenizers"]
            )
            parameters = [np.load(file.open(name)) for name in self.card["parameters"]]
            programs = [bytearray(file.read(bucket["program"])) for bucket in self.card["buckets"]]
        self.parameters = jax.device_put(parameters, replicated)
        self.programs = [
            jax.pmap(jax.export.deserialize(program).call, in_axes=(None, 0, 0))
            for program in programs
        ]

    def translate(self, lines: list[str]) -> list[str]:
        longest, texts = self.card["buckets"][-1]["tokens"], [""] * len(lines)
        ids = [x[: longest - 1] for x in self.source.encode([line.strip() for line in lines])]
        remaining = [i for i in sorted(range(len(ids)), key=lambda i: len(ids[i])) if ids[i]]
        for bucket, program in zip(self.card["buckets"], self.programs, strict=True):
            members = [i for i in remaining if len(ids[i]) < bucket["tokens"]]
            remaining = remaining[len(members) :]
            size = bucket["sentences"] * jax.local_device_count()
            for start in range(0, len(members), size):
                part = members[::-1][start : start + size]  # the longest first
                outputs = self.search(program, [ids[i] for i in part], size, bucket["tokens"])
                for i, text in zip(part, self.target.decode(outputs), strict=True):
                    texts[i] = text.replace("\n", " ").replace("\r", " ")
        return texts

    def search(
        self, program: Callable[..., Any], sources: list[list[int]], size: int, tokens: int
    ) -> list[list[int]]:
        """The best translation of each source, as token ids."""
        source, lengths = np.zeros((size, tokens), np.int32), np.zeros(size, np.int32)
        for row, pieces in enumerate(sources):
            source[row, : len(pieces) + 1] = [*pieces, self.card["end"]]
            lengths[row] = len(pieces) + 1
        distributed = [
            x.reshape(-1, jax.local_device_count(), *x.shape[1:]).swapaxes(0, 1)
            for x in (source, lengths)
        ]
        ids, id_counts, _ = (
            np.asarray(x).swapaxes(0, 1).reshape(size, *x.shape[2:])
            for x in program(self.parameters, *distributed)
        )
        special = self.card["special_ids"]
        return [
            [int(i) for i in ids[row, 0, : id_counts[row, 0] - 1] if i not in special]
            for row in range(len(sources))
        ]


if __name__ == "__main__":
    macos = not hasattr(os, "sched_getaffinity")
    cores = os.cpu_count() or 1 if macos else len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", min(cores, 8))
    text = sys.stdin.buffer.read().decode(errors="replace").removeprefix("\ufeff")
    lines = text.removesuffix("\n").split("\n") if text else []
    translations = Exported(sys.argv[-1]).translate(lines)
    sys.stdout.buffer.write("".join(f"{line}\n" for line in translations).encode())
