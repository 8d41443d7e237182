"""Held-out data: what data.valid and data.test name, one corpus or a list of corpora with names.

tsv:a.tsv                                 one corpus; its name is ""
news=text:a.de,a.en; web=tsv:b.tsv        a list; paths in it contain no semicolon
"""

import re

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import CORPUS_KINDS, check_corpus, split_spec
from seq2seq.runtime.errors import CONFIGURATION, UserError

NAME = re.compile(r"[\w-]+", re.ASCII)  # it is part of file names and of metrics
LIST = re.compile(  # one corpus has a colon before any equals sign, and no other corpus after it
    rf"[^:]*=|.*;\s*(?:[\w-]+=)?(?:tag|{'|'.join(CORPUS_KINDS)}):", re.DOTALL
)


def held_out_specs(config: DataConfig, split: str) -> dict[str, str]:
    """Name → specification of the corpora of "valid" or "test", in order; {} if there are none.

    UserError(CONFIGURATION) if the field is malformed, UserError(DATA) if the data is missing.
    """
    spec = split_spec(config, split)
    named = named_corpora(spec, f"config.data.{split}") if spec else {}
    for corpus in named.values():
        check_corpus(corpus, split, config)
    return named


def named_corpora(spec: str, field: str) -> dict[str, str]:
    """Name → specification of each corpus of a list; {"": spec} if `spec` is one corpus.

    UserError(CONFIGURATION), which names `field`, if the list is malformed or repeats a name.
    """
    if not LIST.match(spec):
        return {"": spec}
    named: dict[str, str] = {}
    for entry in spec.split(";"):
        name, _, corpus = (part.strip() for part in entry.partition("="))
        if not (NAME.fullmatch(name) and corpus):
            raise UserError(
                CONFIGURATION,
                f"{field} is malformed: expected one corpus, or a list NAME=CORPUS; NAME=CORPUS "
                f"with names of letters, digits, _ and -, got the entry {entry.strip()!r}",
            )
        if name in named:
            raise UserError(
                CONFIGURATION,
                f"{field} has two corpora {name!r}: expected distinct names; rename one of them",
            )
        named[name] = corpus
    return named


def qualified(title: str, name: str) -> str:
    """`title` and the name of a corpus, if it has one: "valid news"."""
    return f"{title} {name}" if name else title
