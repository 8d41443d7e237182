"""All settings of a run: the config classes with their options, checks, flags and help.

A config file imports them from here: `from seq2seq.config import Config, DataConfig, ModelConfig`.
ModelConfig stands in model/, which can be used without this package.
"""

from seq2seq.config.data_config import DataConfig
from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.config.training_config import TrainingConfig
from seq2seq.config.tree import Config
from seq2seq.model.config import ModelConfig

__all__ = ["Config", "DataConfig", "DecodingConfig", "ModelConfig", "TrainingConfig"]
