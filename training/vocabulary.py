"""The vocabulary of a run: loaded, copied from another model, or trained."""

from pathlib import Path

from data.config import DataConfig
from data.corpora import corpus_tags, split_spec
from data.corpus import Corpus
from data.tokenizer import OUR_IDS, Tokenizer
from data.vocabulary import load_tokenizers, tokenizer_sha256, train_tokenizers
from interop.models import open_model
from runtime.errors import CONFIGURATION, UserError
from runtime.processes import is_first
from storage.config import Config, take_model
from storage.run import Run


def find_tokenizers(config: Config, run: Run, corpus: Corpus) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a resumed run or of training.init_from, else new ones trained on `corpus`.

    Process 0 trains and saves new ones; then the other processes load them. training.init_from
    also sets the model fields of `config` that have their default values. Raises
    UserError(CONFIGURATION) as `check_tags` does.
    """
    if run.resumed:
        tokenizers = load_tokenizers(str(run.path / "vocab"))
    elif config.training.init_from:
        tokenizers = initial_tokenizers(config, run)
    elif is_first():
        tags = corpus_tags(config.data.corpus)
        tokenizers = train_tokenizers(config.data, corpus.source, corpus.target, tags)
    else:
        tokenizers = load_tokenizers(str(run.path / "vocab"))
    check_tags(config.data, tokenizers[0])
    return tokenizers


def initial_tokenizers(config: Config, run: Run) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of training.init_from; its model fields are copied into `config`.

    Raises UserError(CONFIGURATION) if the model differs, or if it is the run itself.
    """
    path = Path(config.training.init_from).expanduser()
    if path.resolve() == run.path.resolve():
        raise UserError(
            CONFIGURATION,
            f"training.init_from={path} is the run itself; choose another --workdir",
        )
    initial_config, tokenizers = open_model(path, "best")
    if differences := take_model(config, initial_config):
        raise UserError(
            CONFIGURATION,
            f"training.init_from={config.training.init_from} has "
            f"another model: {', '.join(differences)}",
        )
    return tokenizers


def check_tags(config: DataConfig, tokenizer: Tokenizer) -> None:
    """Raise UserError(CONFIGURATION) for a tag that is not one piece of the source vocabulary."""
    for split, field in (("train", "corpus"), ("valid", "valid"), ("test", "test")):
        for tag in corpus_tags(split_spec(config, split)):
            ids = tokenizer.encode(tag)
            if tokenizer.id_of(tag) not in ids:
                raise UserError(
                    CONFIGURATION,
                    f"data.{field}: the tag {tag} is not in the source vocabulary: expected one "
                    f"piece, got {' '.join(map(tokenizer.piece, ids))}; use tags of data.corpus "
                    "with data.tokenizer=unigram, bpe or words, or tags that the vocabulary of "
                    "training.init_from has",
                )


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
    config.data.vocab_sha256 = "+".join(map(tokenizer_sha256, tokenizers))
    config.validate()
