"""The vocabulary of a run: loaded, copied from another model, or trained."""

from collections.abc import Sequence
from pathlib import Path

from data.config import DataConfig
from data.corpora import corpus_tags
from data.corpus_cache import CorpusCache
from data.held_out import held_out_specs
from data.own_vocabulary import read_own_tokenizers
from data.part_reader import PartReader
from data.sample import sample_texts
from data.tokenizer import OUR_IDS, Tokenizer
from data.vocabulary import load_tokenizers, tokenizer_sha256, train_tokenizers
from data.vocabulary_cache import cached_tokenizers, vocabulary_key
from interop.models import open_model
from runtime.errors import CONFIGURATION, DATA, UserError
from runtime.notices import Log, throttled
from runtime.paths import expand_path
from runtime.processes import is_first
from storage.config import Config, take_model
from storage.run import Run


def find_tokenizers(
    config: Config, run: Run, readers: Sequence[PartReader], cache: CorpusCache | None
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a resumed run, else those that a new one starts with.

    Process 0 makes and saves new ones; then the other processes load them. Raises
    UserError(CONFIGURATION) as `first_tokenizers` does, and if training.init_from is the run.
    """
    if run.resumed:
        check_own_vocabulary(config)
    init_from = config.training.init_from
    if run.resumed or (not is_first() and not init_from):
        tokenizers = load_tokenizers(str(run.path / "vocab"))
        check_tags(config.data, tokenizers[0])
        return tokenizers
    if init_from and Path(init_from).expanduser().resolve() == run.path.resolve():
        raise UserError(
            CONFIGURATION,
            f"training.init_from={init_from} is the run itself; choose another --workdir",
        )
    return first_tokenizers(config, readers, cache, throttled(run.log))


def first_tokenizers(
    config: Config, readers: Sequence[PartReader], cache: CorpusCache | None, log: Log
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of training.init_from or of data.vocab, else new ones trained on the training
    data.

    training.init_from also sets the model fields of `config` that have their default values.
    Raises UserError(CONFIGURATION) as `initial_tokenizers` and `check_tags` do.
    """
    if config.training.init_from:
        tokenizers = initial_tokenizers(config)
    elif config.data.vocab:
        tokenizers = read_own_tokenizers(config.data.vocab_files)
    else:
        tokenizers = new_tokenizers(config.data, readers, cache, log)
    check_tags(config.data, tokenizers[0])
    return tokenizers


def new_tokenizers(
    config: DataConfig, readers: Sequence[PartReader], cache: CorpusCache | None, log: Log
) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers trained on a sample of the training data, or those of the cache."""
    tags = corpus_tags(config.corpus)

    def train() -> tuple[Tokenizer, Tokenizer]:
        return train_tokenizers(config, *sample_texts(readers, config, log), tags)

    identities = [one for reader in readers if (one := reader.identity())]
    if not cache or len(identities) < len(readers):
        return train()

    def train_on_unchanged() -> tuple[Tokenizer, Tokenizer]:
        tokenizers = train()
        for reader in readers:
            reader.check_unchanged()
        return tokenizers

    key = vocabulary_key(identities, config)
    if sum(one.num_bytes for one in readers) >= cache.smallest:
        return cached_tokenizers(cache.vocabularies, key, train_on_unchanged)
    return cached_tokenizers(cache.vocabularies, key, train, store=False)


def check_own_vocabulary(config: Config) -> None:
    """UserError(DATA) if the files of data.vocab are not those that a resumed run began with.

    The run has a copy: the files may be missing.
    """
    files = config.data.vocab_files if config.data.vocab else []
    if not files or not all(Path(expand_path(file)).exists() for file in files):
        return
    if vocabulary_sha256(read_own_tokenizers(files)) != config.data.vocab_sha256:
        raise UserError(
            DATA,
            f"data.vocab={config.data.vocab} changed since this run began: expected the vocabulary "
            "of the run; restore the file, or choose another --workdir",
        )


def initial_tokenizers(config: Config) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of training.init_from; its model fields are copied into `config`.

    Raises UserError(CONFIGURATION) if the model differs, or if its vocabulary lacks a piece of
    data.user_defined.
    """
    path = Path(config.training.init_from).expanduser()
    initial_config, tokenizers = open_model(path, "best")
    if differences := take_model(config, initial_config):
        raise UserError(
            CONFIGURATION,
            f"training.init_from={config.training.init_from} has "
            f"another model: {', '.join(differences)}; remove these fields from the flags and the "
            "config file",
        )
    for piece in config.data.user_defined.split():
        if any(side.id_of(piece) not in side.encode(piece) for side in tokenizers):
            raise UserError(
                CONFIGURATION,
                f"data.user_defined: {piece} is not in the vocabulary of training.init_from: "
                f"expected one piece; remove it, because {path} determines the vocabulary",
            )
    return tokenizers


def check_tags(config: DataConfig, tokenizer: Tokenizer) -> None:
    """Raise UserError(CONFIGURATION) for a tag that is not one piece of the source vocabulary."""
    held_out = [
        (split, spec)
        for split in ("valid", "test")
        for spec in held_out_specs(config, split).values()
    ]
    for field, spec in [("corpus", config.corpus), *held_out]:
        for tag in corpus_tags(spec):
            ids = tokenizer.encode(tag)
            if tokenizer.id_of(tag) not in ids:
                raise UserError(
                    CONFIGURATION,
                    f"data.{field}: the tag {tag} is not in the source vocabulary: expected one "
                    f"piece, got {' '.join(map(tokenizer.piece, ids))}; {_tag_advice(config)}",
                )


def _tag_advice(config: DataConfig) -> str:
    if config.vocab:
        return "train data.vocab with this tag (spm_train --user_defined_symbols), or use its tags"
    return "use tags of data.corpus, or tags that the vocabulary of training.init_from has"


def set_vocabulary(config: Config, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Set the vocabulary sizes and hashes in `config`, and validate it.

    Raises UserError(CONFIGURATION) if the special ids do not fit the vocabulary.
    """
    if config.special != OUR_IDS and not config.training.init_from:
        raise UserError(
            CONFIGURATION,
            "model.pad_id, start_id, end_id, unknown_id must be 0, 1, 2, 3 as in every vocabulary "
            f"that is trained here, got {tuple(config.special)}",
        )
    config.model.source_vocab_size, config.model.target_vocab_size = (
        tokenizer.size for tokenizer in tokenizers
    )
    config.data.vocab_sha256 = vocabulary_sha256(tokenizers)
    config.validate()


def vocabulary_sha256(tokenizers: tuple[Tokenizer, Tokenizer]) -> str:
    """The sha256 of both sides, as in data.vocab_sha256."""
    return "+".join(map(tokenizer_sha256, tokenizers))
