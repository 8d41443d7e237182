"""From a corpus's name in the configuration to its pairs of sentences.

    builtin:korean_english    generated here, read through TensorFlow Datasets (TFDS)
    text:SOURCE,TARGET        two files, one sentence per line
    tsv:FILE                  one file of source<TAB>target
    tfds:NAME[/CONFIG][:SPLIT]  a TFDS data set prepared as array_record; never downloaded here
    2*ONE + 0.5*OTHER         a mixture: an epoch takes each pair of ONE twice, half of OTHER's

Nothing here needs TensorFlow, and nothing is imported before the checks that can do without.
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from data.config import DataConfig
from data.text_files import Corpus, PairCollector, joined, read_text, read_tsv
from runtime.errors import CONFIGURATION, DATA, UserError
from runtime.lines import check_file
from runtime.notices import Log, no_log
from runtime.paths import check_local_path, expand_path

KINDS = "builtin:korean_english, text:SOURCE,TARGET, tsv:FILE, tfds:NAME[/CONFIG][:SPLIT]"
# Between the corpora of a mixture: a plus sign that a corpus follows, with or without a weight.
PLUS = re.compile(r"\s*\+\s*(?=(?:[^*:+\s]+\s*\*\s*)?(?:builtin|text|tsv|tfds):)")
MOST = 1000.0  # a larger weight is a slip
BUILTIN = {"korean_english": ("ko", "en")}
# What a data set may call our train, valid and test.
SPLITS = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}
READ_AT_ONCE = 10_000  # examples


class _Prepared(NamedTuple):
    """A TFDS data set on disk and the split that is wanted, None if it has no such split."""

    directory: Path
    split: str | None
    splits: list[str]


def read_split(config: DataConfig, split: str, tell: Log = no_log) -> Corpus | None:
    """The pairs of "train", "valid" or "test", None where the corpora have none.

    `tell` gets lines of progress. UserError as `read_corpus`.
    """
    spec = split_spec(config, split)
    return read_corpus(spec, split, config, tell) if spec else None


def split_spec(config: DataConfig, split: str) -> str:
    """The corpus that "train", "valid" or "test" is read from; "" where there is none.

    `config.valid` and `config.test` where given, else what of `config.corpus` has such a split.
    UserError as `check_corpus`.
    """
    given = {"train": config.corpus, "valid": config.valid, "test": config.test}[split]
    if given:
        return given
    brought = [one for _, one in mixture(config.corpus) if _brings(one, split, config)]
    return " + ".join(dict.fromkeys(brought))


def check_corpus(spec: str, split: str, config: DataConfig) -> None:
    """Checks in milliseconds that a corpus can be read: its notation, files, the prepared data set.

    UserError(CONFIGURATION) if `spec` is no corpus, UserError(DATA) if its data is not there.
    """
    for weight, one in mixture(spec):
        if split != "train" and weight != 1.0:
            raise UserError(
                CONFIGURATION, f"a weight is for training data only, got {spec!r} for data.{split}"
            )
        kind, rest = _parsed(one)
        if kind == "text":
            for path in rest.split(","):
                check_file(path)
        elif kind == "tsv":
            check_file(rest)
        elif kind == "tfds":
            prepared = _prepared(rest, split, config)
            if prepared.split is None:
                raise UserError(
                    DATA,
                    f"{one} has no split for {split!r}, only "
                    f"{', '.join(prepared.splits)}; name one as tfds:NAME:SPLIT",
                )


def read_corpus(spec: str, split: str, config: DataConfig, tell: Log = no_log) -> Corpus:
    """The pairs of a corpus or a mixture; `split` ("train", "valid", "test") where it has several.

    UserError as `check_corpus`, and UserError(DATA) for what is wrong inside the data.
    """
    check_corpus(spec, split, config)
    weights, specs = zip(*mixture(spec), strict=True)
    return joined([_read_one(one, split, config, tell) for one in specs], list(weights))


def mixture(spec: str) -> list[tuple[float, str]]:
    """The weight and the corpus of each part of "2*tsv:a.tsv + tsv:b.tsv".

    UserError(CONFIGURATION) if it is nothing of the kind.
    """
    parts = []
    for part in PLUS.split(spec.strip()):
        weight, one = re.fullmatch(r"(?:([^*:]*)\*\s*)?(.*)", part, re.DOTALL).groups()
        try:
            weight = 1.0 if weight is None else float(weight)
        except ValueError:
            weight = 0.0
        if not 0.0 < weight <= MOST:
            raise UserError(
                CONFIGURATION,
                f"a corpus's weight must be a number above 0 and at "
                f"most {MOST:g}, as in 0.5*tsv:FILE; got {part!r}",
            )
        _parsed(one)
        parts.append((weight, one))
    return parts


def _brings(spec, split, config):
    """Whether a corpus comes with a split of its own."""
    kind, rest = _parsed(spec)
    if kind == "tfds" and ":" not in rest:
        return _prepared(rest, split, config).split is not None
    return kind == "builtin"


def _read_one(spec, split, config, tell):
    kind, rest = _parsed(spec)
    if kind == "text":
        corpus = read_text(*rest.split(","), config.on_bad_utf8, tell)
    elif kind == "tsv":
        corpus = read_tsv(rest, config.on_bad_utf8, tell)
    elif kind == "builtin":
        from data.korean.corpus import prepare

        builder = prepare(_data_dir(config) or None)
        name = {"train": "train", "valid": "validation", "test": "test"}[split]
        corpus = _read_builder(builder, name, BUILTIN[rest], spec, config, tell)
    else:
        import tensorflow_datasets as tfds

        prepared = _prepared(rest, split, config)
        builder = tfds.builder_from_directory(str(prepared.directory))
        languages = _languages(builder.info, spec)
        corpus = _read_builder(builder, prepared.split, languages, spec, config, tell)
    return corpus.reversed() if config.reverse else corpus


def _parsed(spec):
    """The kind of a corpus and what follows the colon; UserError(CONFIGURATION) if it is none."""
    kind, _, rest = spec.partition(":")
    if kind not in ("builtin", "text", "tsv", "tfds") or not rest:
        raise UserError(
            CONFIGURATION,
            f"a corpus must be one of {KINDS}, or a mixture as in "
            f"2*tsv:ONE + tsv:OTHER; got {spec!r}",
        )
    if kind == "text" and [*map(bool, rest.split(","))] != [True, True]:
        raise UserError(CONFIGURATION, f"text:SOURCE,TARGET takes two files, got {spec!r}")
    if kind == "builtin" and rest not in BUILTIN:
        raise UserError(CONFIGURATION, f"no builtin corpus {rest!r}, only {', '.join(BUILTIN)}")
    if kind == "tfds" and not re.fullmatch(r"\w+(/[\w.+-]+)?(:\w+(\[[\w:%-]*\])?)?", rest):
        raise UserError(CONFIGURATION, f"tfds:NAME[/CONFIG][:SPLIT] expected, got {spec!r}")
    return kind, rest


def _data_dir(config) -> str:
    """config.data.data_dir; UserError(CONFIGURATION) if it is remote."""
    path = expand_path(config.data_dir)
    check_local_path("config.data.data_dir", path)
    return path


def _prepared(rest, split, config) -> _Prepared:
    """Finds a prepared data set by its dataset_info.json: importing TFDS just for this is slow."""
    name, _, wanted = rest.partition(":")
    root = Path(
        expand_path(
            _data_dir(config) or os.environ.get("TFDS_DATA_DIR", "") or "~/tensorflow_datasets"
        )
    ).absolute()
    found = [
        path.parent
        for path in (root / name).glob("*/dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", path.parent.name)
    ]  # not 1.0.0.incomplete…
    if not found:
        configs = sorted({path.parts[-3] for path in (root / name).glob("*/*/dataset_info.json")})
        if configs:
            raise UserError(
                CONFIGURATION,
                f"tfds:{name} has configurations; name one: "
                + ", ".join(f"tfds:{name}/{one}" for one in configs),
            )
        raise UserError(
            DATA,
            f"the data set {name} is not prepared in {root}; prepare it with: "
            f"{_preparation(name, root)}",
        )
    directory = max(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    try:
        info = json.loads((directory / "dataset_info.json").read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(
            DATA,
            f"{directory}/dataset_info.json is damaged; prepare it again with: "
            f"{_preparation(name, root)} --overwrite",
        ) from None
    if info.get("fileFormat") != "array_record":
        raise UserError(
            DATA,
            f"{directory} is stored as {info.get('fileFormat')}, which needs "
            f"TensorFlow; prepare it with: {_preparation(name, root)} --overwrite",
        )
    splits = [one["name"] for one in info.get("splits", [])]
    if wanted and wanted.partition("[")[0] not in splits:
        wanted = ""
    elif not wanted:
        wanted = next((one for one in SPLITS[split] if one in splits), "")
    return _Prepared(directory, wanted or None, splits)


def _preparation(name, root):
    return (
        f"tfds build {name} --file_format=array_record --data_dir={root} "
        "(needs: pip install -e '.[prepare]')"
    )


def _languages(info, spec):
    """The two texts of a data set, source first: as its supervised keys say, else its features."""
    import tensorflow_datasets as tfds

    keys = info.supervised_keys or tuple(info.features)
    texts = [
        key for key, feature in info.features.items() if isinstance(feature, tfds.features.Text)
    ]
    if len(keys) != 2 or not all(key in texts for key in keys):
        raise UserError(
            DATA, f"{spec} is not pairs of sentences: its features are {', '.join(info.features)}"
        )
    return keys


def _read_builder(builder, split, languages, name, config, tell):
    """The pairs of a prepared data set, in the order of its files (TFDS sorts by a hash)."""
    examples = builder.as_data_source(split)
    name = name if name.endswith(f":{split}") else f"{name}:{split}"
    digest = hashlib.sha256()
    pairs = PairCollector((name, name), config.on_bad_utf8, tell)
    total = len(examples)
    for start in range(0, total, READ_AT_ONCE):
        block = range(start, min(start + READ_AT_ONCE, total))
        for number, example in zip(block, examples.__getitems__(list(block)), strict=True):
            # One pair a line everywhere else, so a line feed inside a sentence becomes a space.
            pair = [example[language].replace(b"\n", b" ") for language in languages]
            for text in pair:
                digest.update(text + b"\n")
            pairs.add(number + 1, *pair)
    return pairs.corpus({name: digest.hexdigest()})
