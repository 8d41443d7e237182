"""Resumable output: the results of a job are saved as they are computed, and reused after a kill.

Results are saved in OUTPUT.parts as they are computed, in any order, each with its line number and
a hash of the line. The folder (`results_folder.py`) holds a fingerprint of everything else that
determines the results. The same command computes only the missing results; a different command
discards them. OUTPUT appears by a rename, or an upload, when it is complete.
"""

import hashlib
import json
import platform
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import jax

from seq2seq.data.tokenizers.vocabulary import tokenizer_sha256
from seq2seq.decoding.command.inputs import NumberedItems
from seq2seq.decoding.command.results_folder import MARK, results_folder
from seq2seq.decoding.ensembles import Member
from seq2seq.decoding.results import Item
from seq2seq.decoding.translator import Translator
from seq2seq.files.hub import name_of_snapshot
from seq2seq.files.locks import check_nothing
from seq2seq.files.output_files import file_sha256, open_atomic
from seq2seq.files.temporaries import is_temporary
from seq2seq.files.weight_names import ADAPTER_FILES, weight_names
from seq2seq.pretrained.models import find_params, whole_model
from seq2seq.runtime import processes
from seq2seq.runtime.devices import is_deterministic
from seq2seq.runtime.errors import DATA, OUTPUT, UserError
from seq2seq.runtime.streams import note
from seq2seq.runtime.version import __version__
from seq2seq.storage.replicas.remote_model import VERSIONS

SAVE_INTERVAL = 10.0  # seconds after which results are saved even if they are fewer

LIBRARIES = ("jax", "jaxlib", "sentencepiece")
RESULTS = re.compile(r"[0-9]{12,}-[0-9a-f]{12}")  # the names of the files with results


def is_local(number: int, chunk: int) -> bool:
    """Whether this process computes line `number`: several processes take chunks in turn."""
    return number // chunk % processes.count() == processes.index()


def job_fingerprint(
    translator: Translator, members: Sequence[Member], settings: Sequence[str]
) -> str:
    """sha256 of everything that determines the output for a line, except the line: options, models
    and their weights, vocabularies, versions of this project and of libraries, machine, device, the
    deterministic flag, and the `settings` besides the translator's."""
    device, batch_size = jax.local_devices()[0], translator.engine.sizes.batch_size
    facts = [
        # Not an automatic batch size: a line's bytes depend on the one that is compiled.
        asdict(translator.decoding) | {"batch_size": batch_size},
        translator.weights,
        [*map(tokenizer_sha256, (translator.source_tokenizer, translator.target_tokenizer))],
        *settings,
        __version__,
        [version(name) for name in LIBRARIES],
        platform.machine(),
        device.platform,
        device.device_kind,
        is_deterministic(),
        *filter(None, (name_of_snapshot(member.directory) for member in members)),  # the commits
    ]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for member in members:
        for path in model_files(*member):
            is_inside = path.is_relative_to(member.directory)  # or of an adapter's base model
            name = path.relative_to(member.directory) if is_inside else path.name
            digest.update(f"{name}\n".encode())
            digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()


def model_files(run: Path, checkpoint: str) -> list[Path]:
    """The files of a model, besides those of its vocabularies, that determine translations."""
    params, whole = find_params(run, checkpoint), whole_model(run)
    if params.is_dir():
        weights = params.rglob("*")
    else:  # a file of weights may be an index of others beside it
        names = [path.name for path in run.iterdir()]
        weights = (run / n for n in weight_names(names) + weight_names(names, ADAPTER_FILES))
    files = {path for path in (*weights, *run.glob("*.json")) if path.is_file()}
    records = "run.json", "best.json", "scores.json", VERSIONS
    base = [] if whole == run else model_files(whole, checkpoint)
    return [*sorted(files - {run / name for name in records}), *base]


def hash_of(item: Item) -> str:
    """A hash of an item's line, target and prefixes."""
    parts = item.line, item.target, item.prefix, item.source_prefix
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def open_resumable_output(
    output: str, fingerprint: str, chunk: int, overwrite: bool, check_lock: Callable[[], None]
) -> "ResumableOutput":
    """The saved results of the job with this fingerprint, which must be equal in all processes, as
    must be the lines of a chunk. UserError if they differ."""
    values = {
        "the job (run, options, versions, device)": fingerprint,
        "the lines of a chunk (devices × batch size)": str(chunk),
    }
    processes.check_agreement(values)
    with processes.first_process_first("the saved results"):
        return ResumableOutput(output, fingerprint, chunk, overwrite, check_lock)


def is_of_job(name: str) -> bool:
    """Whether a file of this name holds results, or was not written completely."""
    return RESULTS.fullmatch(name) is not None or is_temporary(name)


class ResumableOutput:
    """An output file whose finished results are saved in a folder beside it."""

    def __init__(
        self,
        output: str,
        fingerprint: str,
        chunk: int,
        overwrite: bool,
        check_lock: Callable[[], None] = check_nothing,
    ):
        """Keeps the results of a job with the same fingerprint, and removes those of another, or of
        one whose fingerprint is damaged.

        `chunk` is the number of consecutive lines that a process takes in turn, and of results that
        are saved at once. `overwrite`: whether the output may replace a file. `check_lock` is
        called before anything is written (`locked_output`).
        """
        self._chunk, self._output, self._overwrite = chunk, output, overwrite
        self._check_lock = check_lock
        self._folder = results_folder(output)
        if self._folder.exists():
            self._check_folder()
            if self._folder.read(MARK) == fingerprint.encode("ascii"):
                return
            note(
                f"the saved results in {self._folder.path} are deleted: they are of another model, "
                "vocabulary, option, version or device"
            )
            self._folder.delete()
        self._folder.create(fingerprint)

    def _check_folder(self) -> None:
        """UserError(OUTPUT) if the folder has other files than those of a job."""
        names = self._folder.names()
        foreign = [name for name in names if name != MARK and not is_of_job(name)]
        if foreign or MARK not in names:
            raise UserError(
                OUTPUT,
                f"{self._folder.path} is not a directory of a decoding job: expected only its "
                f"files, got {', '.join(sorted(foreign)[:5]) or 'no fingerprint'}; move it, or "
                "choose another --output",
            )

    def run(
        self,
        items: Callable[[], NumberedItems],
        compute: Callable[[NumberedItems], Iterable[Mapping[int, str]]],
        reused: Callable[[int], None] = lambda count: None,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        """Compute the missing results with `compute`, then write the whole output file.

        `items` returns a new iterator over the input. Several processes compute chunks in
        turn. `reused` is called with a count of results of an earlier run, as they are found;
        `published` when the output file is complete, before the saved results are deleted.
        """
        hashes: dict[int, str] = {}
        unsaved: dict[int, tuple[str, str]] = {}
        saved = time.monotonic()

        def missing() -> NumberedItems:
            find = self._finder()
            for number, item in items():
                if not is_local(number, self._chunk):
                    continue
                if find(number, key := hash_of(item)) is not None:
                    reused(1)
                else:
                    hashes[number] = key
                    yield number, item

        try:
            for group in compute(missing()):
                unsaved |= {number: (hashes.pop(number), text) for number, text in group.items()}
                full = self._folder.saves_each_chunk and len(unsaved) >= self._chunk
                if full or time.monotonic() - saved > SAVE_INTERVAL:
                    self._save(unsaved)
                    unsaved, saved = {}, time.monotonic()
        finally:  # also after a signal
            self._save(unsaved)
        # Other processes may have more lines left, so no limit fits.
        processes.barrier("the last chunk", is_limited=False)
        processes.run_on_first("the whole file", self._join, items, published, is_limited=False)

    def _save(self, results: dict[int, tuple[str, str]]) -> None:
        """Write a file of lines [number, hash, text], named by its first number and a hash of its
        content."""
        if not results:
            return
        text = "".join(json.dumps([number, *results[number]]) + "\n" for number in sorted(results))
        name = f"{min(results):012d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self._check_lock()
        self._folder.write(name, text)

    def count_saved(self) -> int:
        """The number of saved results, each a line of a file."""
        return sum(self._folder.read(name).count(b"\n") for name in self._saved_files())

    def _saved_files(self) -> list[str]:
        """The names of the files of results, in the order of their first line."""
        return sorted(name for name in self._folder.names() if RESULTS.fullmatch(name))

    def _finder(self) -> Callable[[int, str], str | None]:
        """(number, hash of the line) → the saved text or None. Numbers must ascend."""
        names = deque(self._saved_files())
        loaded: dict[tuple[int, str], str] = {}

        def find(number: int, key: str) -> str | None:
            while names and int(names[0].partition("-")[0]) <= number:
                for passed in [place for place in loaded if place[0] < number]:
                    del loaded[passed]  # of a line of another process, or of one that has changed
                loaded.update(self._load(names.popleft()))
            return loaded.pop((number, key), None)

        return find

    def _load(self, name: str) -> dict[tuple[int, str], str]:
        """The texts of a saved file by (number, hash); none if the file is damaged."""
        try:
            lines = self._folder.read(name).decode("ascii").splitlines()
            return {(number, key): text for number, key, text in map(json.loads, lines)}
        except (ValueError, TypeError):
            note(f"{self._folder.path}/{name} is damaged: its lines are computed again")
            return {}

    def _join(self, items: Callable[[], NumberedItems], published: Callable[[], None]) -> None:
        """Write the output file from the saved results and delete them. UserError(DATA) if a line
        has changed since its result was saved."""
        self._check_lock()
        find = self._finder()
        with open_atomic(self._output, self._overwrite) as whole:
            for number, item in items():
                text = find(number, hash_of(item))
                if text is None:
                    raise UserError(
                        DATA,
                        f"line {number + 1} of the input has changed since the job "
                        "started; run the same command again",
                    )
                whole.write(f"{text}\n".encode())
        published()
        try:
            self._check_folder()
            self._folder.delete()
        except (OSError, UserError) as error:  # the job is done
            note(f"warning: the saved results in {self._folder.path} are not deleted: {error}")
