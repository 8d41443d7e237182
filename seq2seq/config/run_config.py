"""The config of an existing run as a config file: --config=seq2seq/config/run_config.py:RUN.

It is the default of train.py if --workdir names an existing run.
"""

from dataclasses import replace
from pathlib import Path

from seq2seq.config.tree import Config, load_config


def get_config(run: str) -> Config:
    """The config of the run directory `run`, without the fields that are set at each start.

    Training sets the sizes and the hash of the vocabulary, and the user allows changed data for one
    start. The config is open, for the flags of its fields. Raises UserError(CHECKPOINT) for a
    damaged file.
    """
    config = load_config(Path(run).expanduser() / "config.json")
    return Config(
        model=replace(config.model, source_vocab_size=0, target_vocab_size=0),
        data=replace(config.data, vocab_sha256=""),
        training=replace(config.training, allow_data_change=False),
        decoding=replace(config.decoding),
    )
