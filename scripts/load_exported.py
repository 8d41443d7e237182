"""Translate with a file of scripts/export.py. Needs jax, numpy, sentencepiece and flatbuffers.

python FILE < source.txt > target.txt   (FILE contains this script; or python load_exported.py FILE)
"""

import json
import os
import sys
import zipfile

import jax
import numpy as np
from sentencepiece import SentencePieceProcessor


class Exported:
    """`translate(lines)` returns the translation of each line; that of a blank line is blank."""

    def __init__(self, path):
        replicated = jax.NamedSharding(jax.sharding.Mesh(jax.local_devices(), "devices"), jax.P())
        with zipfile.ZipFile(path) as file:
            self.card = json.loads(file.read("card.json"))
            self.source, self.target = (
                SentencePieceProcessor(model_proto=file.read(x)) for x in self.card["tokenizers"]
            )
            parameters = [np.load(file.open(name)) for name in self.card["parameters"]]
            programs = [bytearray(file.read(one["program"])) for one in self.card["buckets"]]
        self.parameters = jax.device_put(parameters, replicated)
        self.programs = [
            jax.pmap(jax.export.deserialize(one).call, in_axes=(None, 0, 0)) for one in programs
        ]

    def translate(self, lines):
        longest, texts = self.card["buckets"][-1]["tokens"], [""] * len(lines)
        ids = [x[: longest - 1] for x in self.source.encode([line.strip() for line in lines])]
        remaining = [i for i in sorted(range(len(ids)), key=lambda i: len(ids[i])) if ids[i]]
        for bucket, program in zip(self.card["buckets"], self.programs, strict=True):
            members = [i for i in remaining if len(ids[i]) < bucket["tokens"]]
            remaining = remaining[len(members) :]
            size = bucket["sentences"] * jax.local_device_count()
            for start in range(0, len(members), size):
                part = members[::-1][start : start + size]  # the longest first
                found = self.search(program, [ids[i] for i in part], size, bucket["tokens"])
                for i, text in zip(part, self.target.decode(found), strict=True):
                    texts[i] = text.replace("\n", " ").replace("\r", " ")
        return texts

    def search(self, program, sources, size, tokens):
        """The best translation of each source, as token ids."""
        source, lengths = np.zeros((size, tokens), np.int32), np.zeros(size, np.int32)
        for row, ids in enumerate(sources):
            source[row, : len(ids) + 1], lengths[row] = [*ids, self.card["end"]], len(ids) + 1
        distributed = [
            x.reshape(-1, jax.local_device_count(), *x.shape[1:]).swapaxes(0, 1)
            for x in (source, lengths)
        ]
        tokens, lengths, _ = (
            np.asarray(x).swapaxes(0, 1).reshape(size, *x.shape[2:])
            for x in program(self.parameters, *distributed)
        )
        special = self.card["special_ids"]
        return [
            [int(i) for i in tokens[row, 0, : lengths[row, 0] - 1] if i not in special]
            for row in range(len(sources))
        ]


if __name__ == "__main__":
    macos = not hasattr(os, "sched_getaffinity")
    cores = os.cpu_count() or 1 if macos else len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", min(cores, 8))
    text = sys.stdin.buffer.read().decode(errors="replace").removeprefix("\ufeff")
    found = Exported(sys.argv[-1]).translate(text.removesuffix("\n").split("\n") if text else [])
    sys.stdout.buffer.write("".join(f"{line}\n" for line in found).encode())
