"""From the specification of a corpus in the configuration to its pairs of sentences.

    builtin:korean_english    generated here, stored and read through TensorFlow Datasets (TFDS)
    text:SOURCE,TARGET        two files, one sentence per line
    tsv:FILE                  one file of source<TAB>target
    tfds:NAME[/CONFIG][:SPLIT]  a TFDS data set prepared as array_record; never downloaded here
    2*ONE + 0.5*OTHER         a mixture: an epoch takes each pair of ONE twice and half of OTHER

KINDS registers the kinds; corpus_kinds.py defines their interface. The checks need neither TFDS nor
TensorFlow.
"""

import re

from data.config import DataConfig
from data.corpus_kinds import CorpusKind, TextCorpus, TsvCorpus
from data.text_files import Corpus, concatenate_corpora
from data.tfds_corpora import BuiltinCorpus, TfdsCorpus
from runtime.errors import CONFIGURATION, UserError
from runtime.notices import Log, no_log

KINDS: dict[str, CorpusKind] = {
    kind.name: kind for kind in (BuiltinCorpus(), TextCorpus(), TsvCorpus(), TfdsCorpus())
}
# The separator of a mixture: a plus sign followed by a corpus, with or without a weight.
PLUS = re.compile(rf"\s*\+\s*(?=(?:[^*:+\s]+\s*\*\s*)?(?:{'|'.join(KINDS)}):)")
MAX_WEIGHT = 1000.0  # a larger weight is a typing error


def read_split(config: DataConfig, split: str, log: Log = no_log) -> Corpus | None:
    """The pairs of "train", "valid" or "test"; None if the corpora do not have this split.

    `log` receives progress. Raises UserError as `read_corpus` does.
    """
    spec = split_spec(config, split)
    return read_corpus(spec, split, config, log) if spec else None


def split_spec(config: DataConfig, split: str) -> str:
    """The specification of the corpus of "train", "valid" or "test"; "" if there is none.

    `config.valid` and `config.test` if set, else the parts of `config.corpus` that have the split.
    Raises UserError as `check_corpus` does.
    """
    given = {"train": config.corpus, "valid": config.valid, "test": config.test}[split]
    if given:
        return given
    specs = []
    for _, spec in mixture(config.corpus):
        kind, rest = parse_spec(spec)
        if kind.has_split(rest, split, config):
            specs.append(spec)
    return " + ".join(dict.fromkeys(specs))


def check_corpus(spec: str, split: str, config: DataConfig) -> None:
    """Checks in milliseconds that a corpus can be read: its notation, files, prepared data set.

    UserError(CONFIGURATION) if `spec` is malformed, UserError(DATA) if the data is missing.
    """
    for weight, part in mixture(spec):
        if split != "train" and weight != 1.0:
            raise UserError(
                CONFIGURATION,
                f"data.{split} has a weight, got {spec!r}; weights are for training data only",
            )
        kind, rest = parse_spec(part)
        kind.check_data(rest, split, config)


def read_corpus(spec: str, split: str, config: DataConfig, log: Log = no_log) -> Corpus:
    """The pairs of a corpus or a mixture; `split` is "train", "valid" or "test".

    Raises UserError as `check_corpus` does, and UserError(DATA) if the content is invalid.
    """
    check_corpus(spec, split, config)
    corpora, weights = [], []
    for weight, part in mixture(spec):
        kind, rest = parse_spec(part)
        corpus = kind.read(rest, split, config, log)
        corpora.append(corpus.reversed() if config.reverse else corpus)
        weights.append(weight)
    return concatenate_corpora(corpora, weights)


def mixture(spec: str) -> list[tuple[float, str]]:
    """The weight and the specification of each part of "2*tsv:a.tsv + tsv:b.tsv".

    UserError(CONFIGURATION) if a part is malformed.
    """
    parts = []
    for part in PLUS.split(spec.strip()):
        weight, one = re.fullmatch(r"(?:([^*:]*)\*\s*)?(.*)", part, re.DOTALL).groups()
        try:
            weight = 1.0 if weight is None else float(weight)
        except ValueError:
            weight = 0.0
        if not 0.0 < weight <= MAX_WEIGHT:
            raise UserError(
                CONFIGURATION,
                f"a corpus's weight must be a number above 0 and at most {MAX_WEIGHT:g}, as in "
                f"0.5*tsv:FILE; got {part!r}",
            )
        parse_spec(one)
        parts.append((weight, one))
    return parts


def parse_spec(spec: str) -> tuple[CorpusKind, str]:
    """The kind of one corpus and the text after the colon. UserError(CONFIGURATION)."""
    name, _, rest = spec.partition(":")
    if name not in KINDS or not rest:
        raise UserError(
            CONFIGURATION,
            f"a corpus must be one of {', '.join(kind.notation for kind in KINDS.values())}, or a "
            f"mixture as in 2*tsv:ONE + tsv:OTHER; got {spec!r}",
        )
    KINDS[name].check_notation(rest)
    return KINDS[name], rest
