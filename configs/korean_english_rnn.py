"""Korean → English with an RNN of one context vector, as large as configs/korean_english.py.

    python train.py --config=configs/korean_english_rnn.py
11.2 % exact match, BLEU 30.61 on the test split, seed 0. The number of steps gives both about the
same processor time: a step takes 1.06 × that of configs/korean_english.py (20 steps, in turn).
"""

from seq2seq.config import Config, ModelConfig
from seq2seq.configs import korean_english


def get_config() -> Config:
    config = korean_english.get_config()
    config.model = ModelConfig(
        kind="rnn",
        d_model=82,
        num_layers=2,
        dropout=0.0,
        max_length=128,
    )
    config.training.num_steps = 1700
    return config
