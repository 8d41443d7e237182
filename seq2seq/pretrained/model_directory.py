"""Models by name: a path, a URL of object storage, or a repository of the Hugging Face Hub.

Of a repository, what its family reads is downloaded and nothing else: the files that identify the
family, those of the tokenizer, then one format of the weights.
"""

from pathlib import Path

from seq2seq.files.hub import Repository, cached_snapshot, is_hub_name, name_of_snapshot
from seq2seq.files.remote import is_remote
from seq2seq.files.weight_names import ADAPTER_FILES, INDEX, WEIGHT_FILES, weight_names
from seq2seq.pretrained.adapters import SETTINGS, base_on_hub
from seq2seq.pretrained.models import check_family, family_of
from seq2seq.pretrained.weight_files import shards
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.replicas.remote_model import local_model

IDENTIFYING = "config.json", SETTINGS  # what tells families apart


def model_directory(name: str, checkpoint: str = "best", local_dir: str = "") -> Path:
    """The directory of a model with its `checkpoint`, which is downloaded to `local_dir` if the
    name is a URL (`local_model`), and to the cache of the Hub if it is hf://OWNER/NAME[@REVISION].
    """
    if is_hub_name(name):
        return fetched_model(name)
    if is_remote(name):
        return local_model(name, checkpoint, local_dir)
    return Path(name).expanduser()


def fetched_model(name: str) -> Path:
    """The directory of a repository in the cache of the Hub. One that is refused by name when it is
    opened, such as that of another kind of model, has no more than the files that identify it. With
    an adapter, the repository of its base model is fetched.

    UserError(CHECKPOINT) if it cannot be fetched or is none of transformers.
    """
    repository = Repository(name, *IDENTIFYING)
    check_family(repository.directory)
    if not (repository.directory / SETTINGS).exists():
        _fetch_files(repository)
    elif base := base_on_hub(repository.directory):
        fetched = cached_snapshot(base)  # an adapter stays with the commit that it was used with
        _fetch_files(Repository(name_of_snapshot(fetched) if fetched else base, *IDENTIFYING))
        _fetch_weights(repository, ADAPTER_FILES)
    return repository.directory


def _fetch_files(repository: Repository) -> None:
    """Fetches what the family of a whole model reads; nothing if the family is refused."""
    family = family_of(repository.directory)
    if family and family.files:
        repository.fetch(*family.files)
        _fetch_weights(repository, WEIGHT_FILES)


def _fetch_weights(repository: Repository, files: tuple[str, ...]) -> None:
    """Fetches the first of the `files`, or its shards, that the repository has."""
    if not (names := weight_names(repository.sizes, files)):
        others = [file for file, size in repository.sizes.items() if size >= 1 << 20]
        raise UserError(
            CHECKPOINT,
            f"{repository.name} has no weights that can be read: expected "
            f"{', '.join(files[:-1])} or {files[-1]}, got "
            f"{', '.join(others) or 'no large file'}; give a revision that has them, or convert "
            "them with transformers",
        )
    repository.fetch(names[0])
    if names[0].endswith(INDEX):
        places = shards(repository.directory / names[0])
        repository.fetch(*sorted({path.name for path in places.values()}))
