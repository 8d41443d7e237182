"""Korean → English with an RNN with additive attention, as large as configs/korean_english.py.

    python train.py --config=configs/korean_english_rnn_attention.py
Not trained yet: no score is recorded.
"""

from configs import korean_english
from model.config import ModelConfig
from storage.config import Config


def get_config() -> Config:
    config = korean_english.get_config()
    config.model = ModelConfig(
        kind="rnn_attention",
        d_model=168,
        num_layers=2,
        dropout=0.0,
        max_length=128,
    )
    config.training.num_steps = 1400
    return config
