"""Translate with a file of scripts/export.py. Needs jax, numpy, sentencepiece and flatbuffers.

python FILE < source.txt > target.txt   (FILE contains this script; or python load_exported.py FILE)

stdin is UTF-8 text with one sentence per line, stdout has one translation per line. The options of
the search are those of the export; card.json in FILE lists them.
"""

import json
import os
import re
import sys
import unicodedata
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from sentencepiece import SentencePieceProcessor

FORMAT = 2  # of card.json
SPECIAL = "</s>", "<pad>", "<s>"  # of MarianMT: pieces that are no text


class Tokenizer:
    """The tokenizer of a run or of a MarianMT directory, which maps pieces to ids with a
    vocabulary. `card` is its entry in card.json."""

    def __init__(self, file: zipfile.ZipFile, card: dict[str, Any]) -> None:
        self.card = card
        self.processor = SentencePieceProcessor(model_proto=file.read(card["model"]))
        vocabulary = card.get("vocabulary")
        self.ids: dict[str, int] = json.loads(file.read(vocabulary)) if vocabulary else {}
        self.pieces = {i: piece for piece, i in self.ids.items()}
        self.replaced = str.maketrans(card.get("replaced", {}))  # of sources
        # SentencePiece returns unknown characters as they are, so a text may have any "piece".
        self.in_text = {piece: i for piece, i in self.ids.items() if piece not in SPECIAL}

    def clean(self, text: str) -> str:
        """A source without the characters that the vocabulary lacks, as far as that is known."""
        text = unicodedata.normalize("NFC", text) if self.card.get("nfc") else text
        text = text.translate(self.replaced)
        return re.sub(self.card.get("removed", ""), "", text).strip()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of texts. A tag such as >>de<< at the start has no boundary piece before it."""
        if not self.ids:
            boundary, tags = self.card["boundary"], self.card["tags"]
            encoded = self.processor.encode(texts)
            return [x[1:] if x[:1] == [boundary] and {*x[1:2]} & {*tags} else x for x in encoded]
        matches = [re.match(">>.*?<<", text, re.DOTALL) for text in texts]
        starts = [[match.group()] if match else [] for match in matches]
        rests = [text[sum(map(len, tag)) :] for text, tag in zip(texts, starts, strict=True)]
        pieces = self.processor.encode(rests, out_type=str)
        return [
            [self.in_text.get(piece, self.ids["<unk>"]) for piece in tag + line]
            for tag, line in zip(starts, pieces, strict=True)
        ]

    def decode(self, ids: list[int]) -> str:
        """The text of ids, in one line; the unknown token becomes ⁇."""
        if self.ids:
            parts: list[list[str]] = [[]]  # pieces between unknown tokens
            for i in ids:
                if i == self.ids["<unk>"]:
                    parts.append([])
                elif self.pieces.get(i) not in SPECIAL:
                    parts[-1].append(self.pieces.get(i, ""))
            text = "⁇ ".join(map(self.processor.decode_pieces, parts)).replace("▁", " ")
        else:
            text = self.processor.decode(ids)
        text = text.replace("\n", " ").replace("\r", " ")
        return text.strip() if self.ids else text


def fuse_no_reductions(version: str) -> None:
    """Let XLA compile for a CPU as decode.py does, if it has not started yet.

    `version` is that of JAX at the export: another one may not have the flag, and would abort.
    """
    flag, flags = "xla_cpu_experimental_ynn_fusion_type", os.environ.get("XLA_FLAGS", "")
    if version == jax.__version__ and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{flag}=-reduce"


def devices_for(platforms: list[str], log: Callable[[str], None]) -> list[jax.Device]:
    """The devices of this process for programs of these platforms: those that JAX uses by default,
    or else those of the CPU; `log` is called with a line then. ValueError if there are none."""
    present = jax.export.default_export_platform()
    if present in platforms:
        return jax.local_devices()
    if "cpu" in platforms:
        with suppress(RuntimeError):  # JAX_PLATFORMS excludes the CPU
            devices = jax.local_devices(backend="cpu")
            log(f"the file has no programs for {present}: it is run on the CPU")
            return devices
    raise ValueError(
        f"the file has no programs for this machine: expected {' or '.join(platforms)}, got "
        f"{present}; export it again with --platforms={present}"
    )


class Exported:
    """`translate(lines)` returns the translation of each line; that of a blank line is blank.

    `truncated` are the indices of the lines of the last call that were too long. `log` is called
    with a line before each compilation and if the CPU replaces the devices that JAX would use.
    ValueError if the file is another one, or has no programs for any device, and from `translate`
    if a score is not a number.
    """

    def __init__(self, path: str, log: Callable[[str], None] = lambda line: None) -> None:
        self.log = log
        self.truncated: list[int] = []
        self.compiled: set[int] = set()  # buckets
        with zipfile.ZipFile(path) as file:
            has_card = "card.json" in file.namelist()
            self.card = json.loads(file.read("card.json")) if has_card else {}
            if self.card.get("format") != FORMAT:
                raise ValueError(
                    f"{path} is invalid: expected a file of scripts/export.py of format {FORMAT}"
                )
            fuse_no_reductions(self.card["jax"])
            self.devices = devices_for(self.card["platforms"], log)
            self.source, self.target = (Tokenizer(file, x) for x in self.card["tokenizers"])
            parameters = [np.load(file.open(name)) for name in self.card["parameters"]]
            programs = [bytearray(file.read(bucket["program"])) for bucket in self.card["buckets"]]
        replicated = jax.NamedSharding(jax.sharding.Mesh(self.devices, "devices"), jax.P())
        self.parameters = jax.device_put(parameters, replicated)
        self.programs = [self.program(path, content) for content in programs]

    def program(self, path: str, content: bytearray) -> Callable[..., Any]:
        """The function of a program. ValueError if this version of JAX cannot read it."""
        try:
            call = jax.export.deserialize(content).call
        except Exception as error:  # of many types; JAX promises half a year
            version, day = self.card["jax"], self.card.get("date", "an unknown day")
            raise ValueError(
                f"{path} was exported with jax {version} on {day}, and jax {jax.__version__} "
                f"cannot read it: {error}; export it again, or install jax=={version}"
            ) from error
        return jax.pmap(call, in_axes=(None, 0, 0), devices=self.devices)

    def translate(self, lines: list[str]) -> list[str]:
        longest, texts = self.card["buckets"][-1]["tokens"], [""] * len(lines)
        ids = self.source.encode([self.source.clean(line) for line in lines])
        self.truncated = [i for i, x in enumerate(ids) if len(x) >= longest]
        ids = [x[: longest - 1] for x in ids]
        remaining = [i for i in sorted(range(len(ids)), key=lambda i: len(ids[i])) if ids[i]]
        for bucket, program in zip(self.card["buckets"], self.programs, strict=True):
            members = [i for i in remaining if len(ids[i]) < bucket["tokens"]]
            remaining = remaining[len(members) :]
            size = bucket["batch_size"] * bucket["queue"] * len(self.devices)
            if members and bucket["tokens"] not in self.compiled:
                self.log(
                    f"{len(members):,} lines of at most {bucket['tokens']} source tokens: "
                    "compiling their program"
                )
                self.compiled.add(bucket["tokens"])
            for start in range(0, len(members), size):
                part = members[::-1][start : start + size]  # the longest first
                outputs = self.search(program, [ids[i] for i in part], size, bucket["tokens"])
                for i, output in zip(part, outputs, strict=True):
                    texts[i] = self.target.decode(output)
        return texts

    def search(
        self, program: Callable[..., Any], sources: list[list[int]], size: int, tokens: int
    ) -> list[list[int]]:
        """The best translation of each source, as token ids. ValueError for a score of NaN."""
        source, lengths = np.zeros((size, tokens), np.int32), np.zeros(size, np.int32)
        for row, pieces in enumerate(sources):
            source[row, : len(pieces) + 1] = [*pieces, self.card["end"]]
            lengths[row] = len(pieces) + 1
        distributed = [
            x.reshape(-1, len(self.devices), *x.shape[1:]).swapaxes(0, 1) for x in (source, lengths)
        ]
        ids, id_counts, scores = (
            np.asarray(x).swapaxes(0, 1).reshape(size, *x.shape[2:])
            for x in program(self.parameters, *distributed)
        )
        if np.isnan(scores[: len(sources)]).any():
            raise ValueError("a score is NaN; export the model with --dtype=float32")
        special = self.card["special_ids"]
        return [
            [int(i) for i in ids[row, 0, : id_counts[row, 0] - 1] if i not in special]
            for row in range(len(sources))
        ]


def note(line: str) -> None:
    """Write a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def report(numbers: list[int], problem: str) -> None:
    """Write how many lines have a problem, and the first five, to stderr."""
    if numbers:
        more = ", …" if len(numbers) > 5 else ""
        note(f"warning: {len(numbers):,} lines {problem}: {str(numbers[:5])[1:-1]}{more}")


def file_argument() -> str:
    """FILE of the command line. Exits if it is missing or another file, or for --help."""
    path, count = sys.argv[-1], len(sys.argv) - 1
    if path in ("-h", "--help"):
        print(__doc__)
        sys.exit(0)
    if count < 2 and zipfile.is_zipfile(path):
        return path
    problem = f"{path} is invalid: expected a file of scripts/export.py"
    if count != 1:
        problem = f"FILE is missing: expected one argument, got {count}"
    note(f"{__doc__}\nerror: {problem}")
    sys.exit(1)


def write_result(lines: list[str]) -> None:
    """Write lines to stdout; it is no error if its reader has ended, as that of `| head`."""
    try:
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode())
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no message at exit


def main() -> None:
    """Translate stdin."""
    path = file_argument()
    macos = not hasattr(os, "sched_getaffinity")
    cores = os.cpu_count() or 1 if macos else len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", min(cores, 8))
    data = sys.stdin.buffer.read().removeprefix(b"\xef\xbb\xbf")
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    texts = [line.decode(errors="replace") for line in lines]
    valid = [line.decode(errors="ignore") == text for line, text in zip(lines, texts, strict=True)]
    report([i for i, x in enumerate(valid, 1) if not x], "are not UTF-8, bytes replaced")
    try:
        exported = Exported(path, note)
        translations = exported.translate(texts)
    except ValueError as error:
        note(f"error: {error}")
        sys.exit(2)
    report([i + 1 for i in exported.truncated], "are too long for the programs, truncated")
    write_result(translations)


if __name__ == "__main__":
    main()
