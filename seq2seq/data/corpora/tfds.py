"""The corpus kinds that are read through TensorFlow Datasets (TFDS).

A data set is found on disk by its dataset_info.json: the checks do not import TFDS, which is slow.
Data sets are stored as array_record, which needs no TensorFlow, and are never downloaded here.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.blocks import Block, blocks_of
from seq2seq.data.corpora.raw_corpus import RawCorpus
from seq2seq.files.lines import LONGEST
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.json_objects import json_object
from seq2seq.runtime.paths import check_local_path, expand_path

# Our split → the names that TFDS data sets use for it.
SPLITS = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}
READ_AT_ONCE = 4096  # examples


class PreparedDataSet(NamedTuple):
    """A TFDS data set on disk and the requested split, None if the data set does not have it."""

    directory: Path
    split: str | None
    splits: list[str]


class TfdsCorpus(RawCorpus):
    """A TFDS data set of sentence pairs, prepared on disk."""

    name, notation = "tfds", "tfds:NAME[/CONFIG][:SPLIT]"

    def __init__(self, rest: str) -> None:
        super().__init__(rest)
        if not re.fullmatch(r"\w+(/[\w.+-]+)?(:\w+(\[[\w:%-]*\])?)?", rest):
            raise UserError(
                CONFIGURATION,
                f"the corpus is malformed: expected {self.notation}, got {self.spec}",
            )

    def check_data(self, split: str, config: DataConfig) -> None:
        self._prepared(split, config)

    def has_split(self, split: str, config: DataConfig) -> bool:
        return ":" not in self.rest and find_prepared(self.rest, split, config).split is not None

    def names(self, split: str, config: DataConfig) -> tuple[str, str]:
        title = _title(self.spec, self._prepared(split, config)[1])
        return title, title

    def files(self, split: str, config: DataConfig) -> list[str]:
        return _files_of(find_prepared(self.rest, split, config).directory)

    def absolute_spec(self) -> str:
        # Entries of earlier versions may have source and target swapped (`_languages`).
        return f"{self.spec}, ordered features"

    def blocks(self, split: str, config: DataConfig, hashes: dict[str, str]) -> Iterator[Block]:
        import tensorflow_datasets as tfds

        directory, name = self._prepared(split, config)
        try:
            builder = tfds.builder_from_directory(str(directory))
        except (LookupError, TypeError, ValueError) as error:
            raise _damaged(directory, error) from None
        languages = _languages(builder.info, self.spec)
        return builder_blocks(builder, name, languages, _title(self.spec, name), hashes)

    def _prepared(self, split: str, config: DataConfig) -> tuple[Path, str]:
        """The directory of the data set and the name of the split. UserError(DATA) without it."""
        prepared = find_prepared(self.rest, split, config)
        if prepared.split is None:
            raise UserError(
                DATA,
                f"{self.spec} has no split for {split!r}: it has {', '.join(prepared.splits)}; "
                "name one as tfds:NAME:SPLIT",
            )
        return prepared.directory, prepared.split


class BuiltinCorpus(RawCorpus):
    """A corpus that this project generates; it has all splits."""

    name, notation = "builtin", "builtin:korean_english"
    languages = {"korean_english": ("ko", "en")}
    splits = {"train": "train", "valid": "validation", "test": "test"}

    def __init__(self, rest: str) -> None:
        super().__init__(rest)
        if rest not in self.languages:
            raise UserError(
                CONFIGURATION,
                f"there is no built-in corpus {rest!r}: expected {', '.join(self.languages)}",
            )

    def has_split(self, split: str, config: DataConfig) -> bool:
        return True

    def names(self, split: str, config: DataConfig) -> tuple[str, str]:
        title = _title(self.spec, self.splits[split])
        return title, title

    def files(self, split: str, config: DataConfig) -> list[str]:
        return _files_of(Path(_korean_english(config).data_path))

    def blocks(self, split: str, config: DataConfig, hashes: dict[str, str]) -> Iterator[Block]:
        (name, _), languages = self.names(split, config), self.languages[self.rest]
        return builder_blocks(_korean_english(config), self.splits[split], languages, name, hashes)


def _korean_english(config: DataConfig) -> Any:
    """The builder of the only built-in corpus, which is prepared if needed."""
    from seq2seq.data.korean.corpus import prepare_korean_english

    return prepare_korean_english(_data_dir(config) or None)


def _title(spec: str, split: str) -> str:
    """The name of a split of a data set, for places and fingerprints."""
    return spec if spec.endswith(f":{split}") else f"{spec}:{split}"


def _files_of(directory: Path) -> list[str]:
    """The files of a prepared data set."""
    return sorted(str(path.absolute()) for path in directory.iterdir() if path.is_file())


def _data_dir(config: DataConfig) -> str:
    """config.data.data_dir; UserError(CONFIGURATION) if it is remote."""
    path = expand_path(config.data_dir)
    check_local_path("config.data.data_dir", path)
    return path


def find_prepared(rest: str, split: str, config: DataConfig) -> PreparedDataSet:
    """The data set `NAME[/CONFIG][:SPLIT]` on disk, its newest version."""
    name, _, requested = rest.partition(":")
    data_dir = _data_dir(config) or os.environ.get("TFDS_DATA_DIR", "") or "~/tensorflow_datasets"
    root = Path(expand_path(data_dir)).absolute()
    directory = _version_directory(name, root)
    splits = _read_splits(directory, name, root)
    if requested and requested.partition("[")[0] not in splits:
        requested = ""
    elif not requested:
        requested = next((alias for alias in SPLITS[split] if alias in splits), "")
    return PreparedDataSet(directory, requested or None, splits)


def _version_directory(name: str, root: Path) -> Path:
    versions = [
        path.parent
        for path in (root / name).glob("*/dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", path.parent.name)
    ]  # not 1.0.0.incomplete…
    if versions:
        return max(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    configs = sorted({path.parts[-3] for path in (root / name).glob("*/*/dataset_info.json")})
    if configs:
        raise UserError(
            CONFIGURATION,
            f"tfds:{name} has several configurations; name one: "
            + ", ".join(f"tfds:{name}/{config}" for config in configs),
        )
    raise UserError(
        DATA,
        f"the data set {name} is not prepared in {root}; prepare it with: "
        f"{_build_command(name, root)}",
    )


def _read_splits(directory: Path, name: str, root: Path) -> list[str]:
    """The splits in dataset_info.json. UserError(DATA) if the data set cannot be read."""
    path = directory / "dataset_info.json"
    try:
        info = json_object(path.read_text(encoding="utf-8"))
        splits = [entry["name"] for entry in info.get("splits", [])]
    except (KeyError, TypeError, ValueError):
        raise UserError(
            DATA,
            f"{path} is damaged; prepare it again with: {_build_command(name, root)} --overwrite",
        ) from None
    if info.get("fileFormat") != "array_record":
        raise UserError(
            DATA,
            f"{directory} cannot be read without TensorFlow: expected the format array_record, got "
            f"{info.get('fileFormat')}; prepare it with: {_build_command(name, root)} --overwrite",
        )
    return splits


def _damaged(directory: str | Path, reason: object) -> UserError:
    return UserError(DATA, f"{directory} is damaged: {reason}; delete it and prepare it again")


def _build_command(name: str, root: Path) -> str:
    return (
        f"tfds build {name} --file_format=array_record --data_dir={root} "
        "(needs: pip install -e '.[prepare]')"
    )


def _languages(info: Any, spec: str) -> tuple[str, str]:
    """The two text features, source first: the supervised keys, else in alphabetical order. (TFDS
    reads the features of a prepared data set in another order in each process.)"""
    import tensorflow_datasets as tfds

    keys = info.supervised_keys or tuple(sorted(info.features))
    texts = [
        key for key, feature in info.features.items() if isinstance(feature, tfds.features.Text)
    ]
    if len(keys) != 2 or not all(key in texts for key in keys):
        raise UserError(
            DATA,
            f"{spec} is not pairs of sentences: expected two text features, got the features "
            f"{', '.join(info.features)}",
        )
    return keys


def builder_blocks(
    builder: Any, split: str, languages: tuple[str, str], name: str, hashes: dict[str, str]
) -> Iterator[Block]:
    """The examples of a prepared data set in the order of its files (TFDS sorts by a hash).

    Sets the sha256 of all texts as `hashes[name]` at the end. UserError(CONFIGURATION) if the
    slice of `split` is not one of the data set, and UserError(DATA) if its files are damaged.
    """
    digest = hashlib.sha256()

    def pairs() -> Iterator[tuple[bytes, bytes]]:
        try:
            examples = builder.as_data_source(split)
            size = len(examples)
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                CONFIGURATION,
                f"{name} cannot be read: {reason}; expected examples of the split, as in "
                "train[:50%] or train[1000:2000]",
            ) from None
        for start in range(0, size, READ_AT_ONCE):
            indices = range(start, min(start + READ_AT_ONCE, size))
            for example in examples.__getitems__(list(indices)):
                if None in (example[language] for language in languages):
                    raise _damaged(builder.data_path, "an example has no text")
                # Text files have one sentence per line: a line feed in a sentence becomes a space.
                pair = [example[language].replace(b"\n", b" ") for language in languages]
                for text in pair:
                    digest.update(text + b"\n")
                yield pair[0][: LONGEST + 1], pair[1][: LONGEST + 1]  # detected as too long

    try:
        yield from blocks_of(pairs())
    except RuntimeError as error:  # of array_record
        raise _damaged(builder.data_path, error) from None
    hashes[name] = digest.hexdigest()
