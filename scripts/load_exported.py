"""Translate with what scripts/export.py wrote: needs jax, numpy, sentencepiece and flatbuffers.

    python FILE < source.txt > target.txt
FILE holds this script; python load_exported.py FILE does the same.
"""

import json
import os
import sys
import zipfile

import jax
import numpy as np
from sentencepiece import SentencePieceProcessor


class Exported:
    """`translate(lines)` gives a translation a line; all local devices share the work."""

    def __init__(self, path):
        self.devices = jax.local_device_count()
        everywhere = jax.sharding.Mesh(jax.local_devices(), ("devices",))
        everywhere = jax.sharding.NamedSharding(everywhere, jax.sharding.PartitionSpec())
        with zipfile.ZipFile(path) as file:
            self.card = json.loads(file.read("card.json"))
            self.source, self.target = (
                SentencePieceProcessor(model_proto=file.read(x)) for x in self.card["tokenizers"])
            parameters = [np.load(file.open(name)) for name in self.card["parameters"]]
            self.parameters = jax.device_put(parameters, everywhere)
            programs = [jax.export.deserialize(bytearray(file.read(bucket["program"])))
                        for bucket in self.card["buckets"]]
        self.programs = [jax.pmap(one.call, in_axes=(None, 0, 0)) for one in programs]

    def translate(self, lines):
        ids, texts = self.source.encode([line.strip() for line in lines]), [""] * len(lines)
        waiting = [i for i in sorted(range(len(ids)), key=lambda i: len(ids[i])) if ids[i]]
        for bucket, program in zip(self.card["buckets"], self.programs, strict=True):
            last, size = bucket is self.card["buckets"][-1], bucket["sentences"] * self.devices
            mine = [i for i in waiting if last or len(ids[i]) < bucket["tokens"]]
            waiting = waiting[len(mine):]
            for part in (mine[::-1][k : k + size] for k in range(0, len(mine), size)):
                found = self.search(program, [ids[i] for i in part], size, bucket["tokens"])
                for i, text in zip(part, self.target.decode(found), strict=True):
                    texts[i] = text.replace("\n", " ").replace("\r", " ")
        return texts

    def search(self, program, sources, size, tokens):
        source, lengths = np.full((size, tokens), self.card["pad"], np.int32), np.zeros(size, int)
        for row, ids in enumerate(sources):  # one that is too long is cut
            lengths[row] = min(len(ids) + 1, tokens)
            source[row, : lengths[row]] = [*ids[: tokens - 1], self.card["end"]]
        dealt = [x.reshape(-1, self.devices, *x.shape[1:]).swapaxes(0, 1).astype(np.int32)
                 for x in (source, lengths)]
        found, lengths, _ = map(np.asarray, program(self.parameters, *dealt))
        found, lengths = (x.swapaxes(0, 1).reshape(size, *x.shape[2:]) for x in (found, lengths))
        best = (ids[0, : n[0] - 1].tolist() for ids, n in zip(found, lengths, strict=True))
        return [[i for i in ids if i not in self.card["unspoken"]] for ids, _ in zip(best, sources)]


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", min(len(os.sched_getaffinity(0)), 8))
    text = sys.stdin.buffer.read().decode(errors="replace").removeprefix("\ufeff")
    found = Exported(sys.argv[-1]).translate(text.removesuffix("\n").split("\n") if text else [])
    sys.stdout.buffer.write("".join(f"{line}\n" for line in found).encode())
