"""Models by name: a path, a URL of object storage, or a repository of the Hugging Face Hub.

Of a repository, what its family reads is downloaded and nothing else: the files that identify the
family, those of the tokenizer, then one format of the weights.
"""

from pathlib import Path

from seq2seq.files.hub import Repository, is_hub_name
from seq2seq.files.remote import is_remote
from seq2seq.files.weight_names import INDEX, WEIGHT_FILES, weight_names
from seq2seq.pretrained.models import check_family, family_of
from seq2seq.pretrained.weight_files import shards
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.replicas.remote_model import local_model

IDENTIFYING = "config.json", "adapter_config.json"  # what tells families apart


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
    opened, such as that of another kind of model, has no more than the files that identify it.

    UserError(CHECKPOINT) if it cannot be fetched or is none of transformers.
    """
    repository = Repository(name, *IDENTIFYING)
    check_family(repository.directory)
    family = family_of(repository.directory)
    if family and family.files:
        repository.fetch(*family.files)
        _fetch_weights(repository)
    return repository.directory


def _fetch_weights(repository: Repository) -> None:
    """Fetches the format of the weights that `weights_path` prefers."""
    if not (names := weight_names(repository.sizes)):
        others = [file for file, size in repository.sizes.items() if size >= 1 << 20]
        raise UserError(
            CHECKPOINT,
            f"{repository.name} has no weights that can be read: expected "
            f"{', '.join(WEIGHT_FILES[:-1])} or {WEIGHT_FILES[-1]}, got "
            f"{', '.join(others) or 'no large file'}; give a revision that has them, or convert "
            "them with transformers",
        )
    repository.fetch(names[0])
    if names[0].endswith(INDEX):
        places = shards(repository.directory / names[0])
        repository.fetch(*sorted({path.name for path in places.values()}))
