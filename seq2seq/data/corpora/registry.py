"""From the specification of a corpus in the configuration to its pairs of sentences.

    builtin:korean_english    generated here, stored and read through TensorFlow Datasets (TFDS)
    text:SOURCE,TARGET        two files, one sentence per line
    tsv:FILE                  one file of source<TAB>target
    weighted_tsv:FILE         one file of source<TAB>target<TAB>loss weight
    tfds:NAME[/CONFIG][:SPLIT]  a TFDS data set prepared as array_record; never downloaded here
    2*ONE + 0.5*OTHER         a mixture: an epoch takes each pair of ONE twice and half of OTHER
    tag:>>deu<<:ONE           each source begins with the tag ">>deu<<" and a space

SOURCE, TARGET and FILE are paths or URLs such as gs://BUCKET/NAME. CORPUS_KINDS lists the kinds;
raw_corpus.py defines their interface. The checks need neither TFDS nor TensorFlow.
"""

import re

from seq2seq.config.data_config import RESERVED, DataConfig
from seq2seq.data.corpora.corpus import CollectedBlock, Corpus, Origin, corpus_of
from seq2seq.data.corpora.part_reader import PartReader
from seq2seq.data.corpora.raw_corpus import (
    MixturePart,
    RawCorpus,
    TextCorpus,
    TsvCorpus,
    WeightedTsvCorpus,
)
from seq2seq.data.corpora.tfds import BuiltinCorpus, TfdsCorpus
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.logs import Log, no_log

CORPUS_KINDS: dict[str, type[RawCorpus]] = {
    kind.name: kind
    for kind in (BuiltinCorpus, TextCorpus, TsvCorpus, WeightedTsvCorpus, TfdsCorpus)
}
# A part of a mixture: weight, tag and corpus.
PART = re.compile(r"(?:([^*:]*)\*\s*)?(?:tag:([^:]*):)?(.*)", re.DOTALL)
MAX_WEIGHT = 1000.0  # a larger weight is a typing error


def split_spec(config: DataConfig, split: str) -> str:
    """The specification of the corpus of "train", "valid" or "test"; "" if there is none.

    `config.valid` and `config.test` if set, else the parts of `config.corpus` that have the split.
    UserError(CONFIGURATION) if `config.corpus` is malformed, UserError(DATA) if a data set is
    missing.
    """
    configured = {"train": config.corpus, "valid": config.valid, "test": config.test}[split]
    if configured:
        return configured
    parts = mixture(config.corpus)
    specs = [part.spec for part in parts if part.corpus.has_split(split, config)]
    return " + ".join(dict.fromkeys(specs))


def check_corpus(spec: str, split: str, config: DataConfig) -> None:
    """Checks in milliseconds that a corpus can be read: its notation, files, prepared data set.

    UserError(CONFIGURATION) if `spec` is malformed, UserError(DATA) if the data is missing.
    """
    for part in mixture(spec):
        if split != "train" and part.weight != 1.0:
            raise UserError(
                CONFIGURATION,
                f"data.{split} has a weight, got {spec!r}; weights are for training data only",
            )
        part.corpus.check_data(split, config)


def open_parts(spec: str, split: str, config: DataConfig) -> list[PartReader]:
    """The parts of a corpus or a mixture, in order.

    UserError(CONFIGURATION) if `spec` is malformed, UserError(DATA) if the data is missing.
    """
    check_corpus(spec, split, config)
    return [PartReader(part, split, config) for part in mixture(spec)]


def read_corpus(spec: str, split: str, config: DataConfig, log: Log = no_log) -> Corpus:
    """The pairs of a corpus or a mixture; `split` is "train", "valid" or "test".

    `log` receives progress. UserError(CONFIGURATION) if `spec` is malformed, UserError(DATA) if the
    data is missing or invalid.
    """
    blocks: list[CollectedBlock] = []
    origins: list[Origin] = []
    fingerprints: dict[str, str] = {}
    for reader in open_parts(spec, split, config):
        of_part = list(reader.collected(log))
        blocks += of_part
        count = sum(len(block.source) for block in of_part)
        origins.append(Origin(reader.names, count, reader.weight))
        fingerprints |= reader.hashes
    return corpus_of(blocks, tuple(origins), fingerprints)


def corpus_tags(spec: str) -> tuple[str, ...]:
    """The distinct tags of a corpus or a mixture; `spec` may be "".

    UserError(CONFIGURATION) if a part is malformed.
    """
    parts = mixture(spec) if spec else []
    return tuple(dict.fromkeys(part.tag for part in parts if part.tag))


def mixture(spec: str) -> list[MixturePart]:
    """The parts of "2*tsv:a.tsv + tag:>>deu<<:tsv:b.tsv".

    UserError(CONFIGURATION) if a part is malformed.
    """
    # The separator: a plus sign followed by a corpus, with or without a weight.
    kinds = "|".join(CORPUS_KINDS)
    plus = rf"\s*\+\s*(?=(?:[^*:+\s]+\s*\*\s*)?(?:tag|{kinds}):)"
    return [_parse_part(part) for part in re.split(plus, spec.strip())]


def _parse_part(part: str) -> MixturePart:
    match = PART.fullmatch(part)
    assert match  # each of its groups may be empty
    weight_text, tag, corpus = match.groups()
    try:
        weight = 1.0 if weight_text is None else float(weight_text)
    except ValueError:
        weight = 0.0
    if not 0.0 < weight <= MAX_WEIGHT:
        raise UserError(
            CONFIGURATION,
            f"a corpus's weight must be a number above 0 and at most {MAX_WEIGHT:g}, as in "
            f"0.5*tsv:FILE; got {part!r}",
        )
    if tag is not None and RESERVED.fullmatch(tag):
        raise UserError(
            CONFIGURATION,
            "a corpus's tag must be text without ▁ or spaces that is neither a special token nor a "
            f"byte, as in tag:>>deu<<:tsv:FILE; got {part!r}",
        )
    return MixturePart(weight, tag or "", parse_corpus(corpus))


def parse_corpus(spec: str) -> RawCorpus:
    """The corpus `NAME:REST`. UserError(CONFIGURATION) if it is malformed."""
    name, _, rest = spec.partition(":")
    if name not in CORPUS_KINDS or not rest:
        notations = ", ".join(kind.notation for kind in CORPUS_KINDS.values())
        raise UserError(
            CONFIGURATION,
            f"a corpus must be one of {notations}, or a mixture as in "
            f"2*tsv:ONE + tag:>>deu<<:tsv:OTHER; got {spec!r}",
        )
    return CORPUS_KINDS[name](rest)
