"""What a run trains on: corpora → tokenizers → token ids, reported as they are read."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.corpora import read_split
from data.pairs import Pairs, encode_pairs, pairs_of_epoch, taken_pairs
from data.subwords import SubwordSampler
from data.text_files import EXAMPLES, Corpus
from data.tokenizer import OUR_IDS, Tokenizer
from data.vocabulary import (
    load_tokenizers,
    save_tokenizers,
    tokenizer_sha256,
    train_tokenizers,
)
from interop.models import open_model
from runtime.errors import CONFIGURATION, UserError
from runtime.notices import throttled
from runtime.processes import after_the_first, first
from storage.config import Config, take_model
from storage.run import Run


class Data(NamedTuple):
    """Everything a run reads: tokens of the training pairs, text and tokens of held-out ones."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    train: Callable[[int], Pairs]  # of an epoch
    valid: tuple[Corpus, Pairs] | None
    test: Corpus | None
    files: dict[str, dict[str, str]]  # of each split: file → sha256
    places: Callable[[int, np.ndarray], list[str]]  # of pairs of an epoch: "train.de:777"


def read_corpora(config: Config, run: Run) -> dict[str, Corpus | None]:
    """The training, validation and test data; logs progress."""
    tell = throttled(run.log)
    return {split: read_split(config.data, split, tell) for split in ("train", "valid", "test")}


def prepare_data(
    config: Config, run: Run, corpora: dict[str, Corpus | None], overwrite: bool = False
) -> Data:
    """Tokenise and report the corpora; sets in `config` what the vocabulary decides.

    `overwrite` clears the run first, but not before there is a vocabulary: a typo costs no run.
    """
    with after_the_first("the vocabulary"):
        tokenizers = find_tokenizers(config, run, corpora["train"], overwrite)
    if config.special != OUR_IDS and not config.training.init_from:
        raise UserError(
            CONFIGURATION,
            "model.pad_id, start_id, end_id, unknown_id must be 0, 1, "
            f"2, 3 as in every vocabulary made here, got {tuple(config.special)}",
        )
    config.model.source_vocab_size, config.model.target_vocab_size = (t.size for t in tokenizers)
    config.data.vocab_sha256 = "+".join(map(tokenizer_sha256, tokenizers))
    config.validate()
    pairs, places, tell = {}, {}, throttled(run.log)
    for name, corpus in corpora.items():
        if corpus is None:
            continue
        dropped, examples = dict(corpus.dropped), dict(corpus.examples)
        if name != "test":  # what is translated is cut off at the model's limit, never dropped
            pairs[name], places[name], unfit = encode_pairs(corpus, *tokenizers, config.data, tell)
            dropped |= {why: len(those) for why, those in unfit.items()}
            examples |= {
                why: list(map(corpus.where, those[:EXAMPLES])) for why, those in unfit.items()
            }
        kept = len(pairs[name].source.lengths) if name in pairs else len(corpus.source)
        reasons = ", ".join(f"{n:,} {why}" for why, n in dropped.items())
        run.log(
            f"{name}: {kept:,} pairs kept, {sum(dropped.values()):,} dropped"
            + (f" ({reasons})" if reasons else "")
            + f", {corpus.replaced:,} lines with replaced bytes" * (corpus.replaced > 0)
        )
        if len(corpus.origins) > 1 and name in pairs:
            for origin, (count, weight) in zip(corpus.origins, pairs[name].weights, strict=True):
                run.log(f"  {' '.join(dict.fromkeys(origin.names))}: {count:,} pairs × {weight:g}")
        for why, where in examples.items():
            run.log(f"  {why}: {', '.join(where)}, …")
    source, target = (t.size for t in tokenizers)
    run.log(
        f"vocabulary: {source:,} source, {target:,} target, "
        f"{'joint' if tokenizers[0] is tokenizers[1] else 'separate'}"
    )
    valid = corpora["valid"]
    held_out = (valid, pairs["valid"]) if valid else None
    train = partial(pairs_of_epoch, pairs["train"], config.training.seed)
    if config.data.subword_sampling:
        texts = [[side[i] for i in places["train"]] for side in corpora["train"][:2]]
        train = SubwordSampler(pairs["train"], texts, tokenizers, config.data, config.training.seed)
    files = {name: corpus.fingerprints for name, corpus in corpora.items() if corpus}

    def places_of(epoch: int, chosen: np.ndarray) -> list[str]:
        taken = taken_pairs(pairs["train"].weights, config.training.seed, epoch)[chosen]
        return [corpora["train"].where(i) for i in places["train"][taken]]

    return Data(tokenizers, train, held_out, corpora["test"] or valid, files, places_of)


def find_tokenizers(
    config: Config, run: Run, corpus: Corpus, overwrite: bool
) -> tuple[Tokenizer, Tokenizer]:
    """Those of the run if it goes on, of the run it starts from, or new ones from the corpus."""
    vocab = str(run.path / "vocab")
    if run.goes_on:  # else a vocabulary is what a failed start left
        return load_tokenizers(vocab)
    if config.training.init_from:
        start = Path(config.training.init_from).expanduser()
        if start.resolve() == run.path.resolve():
            raise UserError(
                CONFIGURATION,
                f"training.init_from={start} is the run itself; choose another --workdir",
            )
        theirs, tokenizers = open_model(start, "best")
        if differ := take_model(config, theirs):
            raise UserError(
                CONFIGURATION,
                f"training.init_from={config.training.init_from} has "
                f"another model: {', '.join(differ)}",
            )
    elif first():
        tokenizers = train_tokenizers(config.data, corpus.source, corpus.target)
    else:
        return load_tokenizers(vocab)  # process 0 has just made it
    if first():
        if overwrite:
            run.clear()
        save_tokenizers(vocab, *tokenizers)
    return tokenizers
