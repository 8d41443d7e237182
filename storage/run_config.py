"""The config of an existing run in the form of a config file: --config=storage/run_config.py:RUN.

It is the default of train.py if --workdir names an existing run.
"""

from pathlib import Path

from storage.config import Config, load_config


def get_config(run: str) -> Config:
    """The config of the run directory `run`, without the fields that are set at each start.

    Training sets the sizes and the hash of the vocabulary, and the user allows changed data for one
    start. Raises UserError as `load_config` does.
    """
    config = load_config(Path(run).expanduser() / "config.json")
    config.model.source_vocab_size = config.model.target_vocab_size = 0
    config.data.vocab_sha256 = ""
    config.training.allow_data_change = False
    return config
