"""Korean → English with an RNN of one context vector, as large as configs/korean_english.py.

    python train.py --config=configs/korean_english_rnn.py
The number of steps gives both about the same minutes: a step takes 1.2 to 1.3 × the time of a step
of configs/korean_english.py (two rounds of 200 steps in turn).
Two CPU cores, seed 0, commit 85487bb: 2 min 6 s from the start to the last line, and 2 min 7 s for
configs/korean_english.py on the same day. The best checkpoint by validation BLEU (step 2000) has
BLEU 47.58 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0) and 24.9 % exact match on
the 1,000 sentences of the test split.
"""

from seq2seq.configs import korean_english
from seq2seq.model.config import ModelConfig
from seq2seq.storage.config import Config


def get_config() -> Config:
    config = korean_english.get_config()
    config.model = ModelConfig(
        kind="rnn",
        d_model=180,
        num_layers=2,
        dropout=0.0,
        max_length=128,
    )
    config.training.num_steps = 2000
    return config
