"""What a run trains on: corpora → tokenizers → token ids, reported as they are read."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from data.errors import CONFIGURATION, UserError
from data.pairs import Pairs, encode_pairs, pairs_of_epoch
from data.subwords import SubwordSampler
from data.text_files import Corpus
from data.tokenizer import (
    OUR_IDS,
    Tokenizer,
    fingerprint,
    load_tokenizers,
    save_tokenizers,
    train_tokenizers,
)
from training.checkpoint import check_run
from training.config import Config
from training.run import Run, take_model


class Data(NamedTuple):
    """Everything a run reads: tokens of the training pairs, text and tokens of held-out ones."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    train: Callable[[int], Pairs]  # of an epoch
    valid: tuple[Corpus, Pairs] | None
    test: Corpus | None


def prepare_data(config: Config, run: Run, corpora: dict[str, Corpus | None]) -> Data:
    """Tokenise and report the corpora; sets in `config` what the vocabulary decides."""
    tokenizers = find_tokenizers(config, run, corpora["train"])
    if config.special != OUR_IDS and not config.training.init_from:
        raise UserError(CONFIGURATION, "model.pad_id, start_id, end_id, unknown_id must be 0, 1, "
                        f"2, 3 as in every vocabulary made here, got {tuple(config.special)}")
    config.model.source_vocab_size, config.model.target_vocab_size = (t.size for t in tokenizers)
    config.data.vocab_sha256 = "+".join(map(fingerprint, tokenizers))
    config.validate()
    pairs, places = {}, {}
    for name, corpus in corpora.items():
        if corpus is None:
            continue
        dropped = dict(corpus.dropped)
        if name != "test":  # what is translated is cut off at the model's limit, never dropped
            pairs[name], places[name], unfit = encode_pairs(corpus, *tokenizers, config.data)
            dropped |= unfit
        kept = len(pairs[name].source.lengths) if name in pairs else len(corpus.source)
        reasons = ", ".join(f"{n:,} {why}" for why, n in dropped.items())
        run.log(f"{name}: {kept:,} pairs kept, {sum(dropped.values()):,} dropped"
                + (f" ({reasons})" if reasons else ""))
        if len(corpus.origins) > 1 and name in pairs:
            for origin, (count, weight) in zip(corpus.origins, pairs[name].weights, strict=True):
                run.log(f"  {' '.join(dict.fromkeys(origin.names))}: {count:,} pairs × {weight:g}")
        for why, where in corpus.examples.items():
            run.log(f"  {why}: {', '.join(where)}, …")
    source, target = (t.size for t in tokenizers)
    run.log(f"vocabulary: {source:,} source, {target:,} target, "
            f"{'joint' if tokenizers[0] is tokenizers[1] else 'separate'}")
    valid = corpora["valid"]
    held_out = (valid, pairs["valid"]) if valid else None
    train = partial(pairs_of_epoch, pairs["train"], config.training.seed)
    if config.data.subword_sampling:
        texts = [[side[i] for i in places["train"]] for side in corpora["train"][:2]]
        train = SubwordSampler(
            pairs["train"], texts, tokenizers, config.data, config.training.seed
        )
    return Data(tokenizers, train, held_out, corpora["test"] or valid)


def find_tokenizers(config: Config, run: Run, corpus: Corpus) -> tuple[Tokenizer, Tokenizer]:
    """Those of the run if it goes on, of the run it starts from, or new ones from the corpus."""
    vocab = str(run.path / "vocab")
    if (run.path / "config.json").exists():  # else a vocabulary is what a failed start left
        return load_tokenizers(vocab)
    if config.training.init_from:
        theirs, tokenizers = check_run(Path(config.training.init_from).expanduser(), "best")
        if differ := take_model(config, theirs):
            raise UserError(CONFIGURATION, f"training.init_from={config.training.init_from} has "
                            f"another model: {', '.join(differ)}")
    else:
        tokenizers = train_tokenizers(config.data, corpus.source, corpus.target)
    save_tokenizers(vocab, *tokenizers)
    return tokenizers
