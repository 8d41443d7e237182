"""The vocabulary of a run: loaded, copied from another model, or trained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from seq2seq.config.data_config import LANGUAGES, TEMPLATES, DataConfig
from seq2seq.config.special_tokens import OUR_IDS
from seq2seq.config.tree import Config, take_model
from seq2seq.data.corpora.held_out import named_corpora
from seq2seq.data.corpora.part_reader import PartReader
from seq2seq.data.corpora.registry import corpus_tags, split_spec
from seq2seq.data.tokenizers.given_vocabulary import read_own_tokenizers
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, vocabulary_sha256
from seq2seq.data.tokenizers.vocabulary_cache import cached_tokenizers, vocabulary_key
from seq2seq.data.tokenizers.vocabulary_sample import sample_texts
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens.affixes import affixes_of
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.files.hub import name_of_snapshot
from seq2seq.files.remote import is_remote
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import open_model
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.logs import Log, throttled
from seq2seq.runtime.paths import expand_path
from seq2seq.runtime.processes import is_first
from seq2seq.storage.run import Run
from seq2seq.training.parameters import check_freeze


def find_tokenizers(
    config: Config, run: Run, readers: Sequence[PartReader], cache: CorpusCache | None
) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config with the sizes of the vocabulary (`with_vocabulary`), and the tokenizers of a
    resumed run, else those that a new one starts with.

    Process 0 makes and saves new ones; then the other processes load them.
    """
    if run.resumed:
        check_own_vocabulary(config)
    init_from = config.training.init_from
    if run.resumed or (not is_first() and not init_from):
        tokenizers = load_tokenizers(str(run.path / "vocab"))
        check_tags(config.data, tokenizers[0])
    elif init_from and is_same_run(init_from, run):
        raise UserError(
            CONFIGURATION,
            f"training.init_from={init_from} is the run itself; choose another --workdir",
        )
    else:
        start = initial_directory(config)
        if start is not None:
            run.init_from = name_of_snapshot(start) or init_from
        config, tokenizers = first_tokenizers(config, readers, cache, run.log, start)
    config = with_vocabulary(config, tokenizers)
    check_freeze(config)
    return config, tokenizers


def is_same_run(name: str, run: Run) -> bool:
    """Whether a path or URL names the run."""
    if is_remote(name):
        return name.rstrip("/") == run.name.rstrip("/")
    return Path(name).expanduser().resolve() == run.path.resolve()


def initial_directory(config: Config) -> Path | None:
    """The directory of training.init_from (`model_directory`), None without it."""
    init_from = config.training.init_from
    return model_directory(init_from) if init_from else None


def first_tokenizers(
    config: Config,
    readers: Sequence[PartReader],
    cache: CorpusCache | None,
    log: Log,
    start: Path | None,
) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config, and the tokenizers of training.init_from, whose directory is `start`, or of
    data.vocab, else new ones trained on the training data.

    With training.init_from, the model fields that have their defaults are those of that model.
    """
    if start is not None:
        config, tokenizers = initial_tokenizers(config, start)
    elif config.data.vocab:
        tokenizers = read_own_tokenizers(config.data.vocab_files)
    else:
        tokenizers = new_tokenizers(config.data, readers, cache, log)
    check_tags(config.data, tokenizers[0])
    check_languages(config.data)
    return config, tokenizers


def new_tokenizers(
    config: DataConfig, readers: Sequence[PartReader], cache: CorpusCache | None, log: Log
) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers trained on a sample of the training data, or those of the cache.

    `log` receives a warning about tags that occur in words, and at times the progress.
    """
    tags = [*map(config.normal_form, corpus_tags(config.corpus))]
    if config.tokenizer != "words":
        for tag in filter(str.isalnum, tags):
            log(
                f"warning: the tag {tag} is cut out of every word that contains it; a tag such as "
                f">>{tag}<< is not"
            )

    def train() -> tuple[Tokenizer, Tokenizer]:
        return train_tokenizers(config, *sample_texts(readers, config, throttled(log)), tags)

    identities = [identity for reader in readers if (identity := reader.identity())]
    if not cache or len(identities) < len(readers):
        return train()

    def train_on_unchanged() -> tuple[Tokenizer, Tokenizer]:
        tokenizers = train()
        for reader in readers:
            reader.check_unchanged()
        return tokenizers

    key = vocabulary_key(identities, config)
    if sum(reader.num_bytes for reader in readers) >= cache.smallest:
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


def initial_tokenizers(config: Config, path: Path) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config with the model of training.init_from, which is the one in the directory `path`,
    and its tokenizers."""
    initial_config, tokenizers = open_model(path, "best")
    config, differences = take_model(config, initial_config)
    if differences:
        raise UserError(
            CONFIGURATION,
            f"training.init_from={config.training.init_from} has "
            f"another model: {', '.join(differences)}; remove these fields from the flags and the "
            "config file",
        )
    for piece in config.data.normal_form(config.data.user_defined).split():
        if any(side.id_of(piece) not in side.encode(piece) for side in tokenizers):
            raise UserError(
                CONFIGURATION,
                f"data.user_defined: {piece} is not in the vocabulary of training.init_from: "
                f"expected one piece; remove it, because {path} determines the vocabulary",
            )
    return config, tokenizers


def check_languages(config: DataConfig) -> None:
    """UserError(CONFIGURATION) for a language of which no text has the code."""
    for side in LANGUAGES:
        if (code := getattr(config, f"{side}_language")) and side not in config.languages_used():
            raise UserError(
                CONFIGURATION,
                f"data.{side}_language={code} has no effect: expected {{{side}}} in one of "
                f"{', '.join(f'data.{name}' for name in TEMPLATES)}; remove it",
            )


def check_tags(config: DataConfig, tokenizer: Tokenizer) -> None:
    """Raise UserError(CONFIGURATION) for a tag that is not one piece of the source vocabulary."""
    held_out = [
        (split, spec)
        for split in ("valid", "test")
        for spec in named_corpora(split_spec(config, split), f"config.data.{split}").values()
    ]
    for field, spec in [("corpus", config.corpus), *held_out]:
        for tag in map(config.normal_form, corpus_tags(spec)):
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


def with_vocabulary(config: Config, tokenizers: tuple[Tokenizer, Tokenizer]) -> Config:
    """The config with the vocabulary sizes and hashes of the tokenizers, and the start token of
    data.target_start, validated."""
    start = affixes_of(config.data, tokenizers).start
    special = config.special if start is None else config.special._replace(start=OUR_IDS.start)
    if special != OUR_IDS and not config.training.init_from:
        raise UserError(
            CONFIGURATION,
            "model.pad_id, start_id, end_id, unknown_id must be 0, 1, 2, 3 as in every vocabulary "
            f"that is trained here, got {tuple(config.special)}",
        )
    source, target = (tokenizer.size for tokenizer in tokenizers)
    if config.training.init_from:  # that model may have more rows than there are ids
        source = max(source, config.model.source_vocab_size)
        target = max(target, config.model.target_vocab_size)
    model = replace(config.model, source_vocab_size=source, target_vocab_size=target)
    if start is not None:
        model = replace(model, start_id=start)
    data = replace(config.data, vocab_sha256=vocabulary_sha256(tokenizers))
    config = replace(config, model=model, data=data)
    config.validate()
    return config
