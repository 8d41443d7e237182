"""The paper's big model (table 3): 6 + 6 layers, d_model 1024, 16 heads; 214 M parameters.

    python train.py --config=configs/big.py --config.data.corpus=text:train.en,train.de \\
        --config.data.valid=text:valid.en,valid.de
The recipe of section 5: 300,000 steps, dropout 0.3. Not trained yet: no score is recorded.
"""

from seq2seq.config import Config
from seq2seq.configs import base


def get_config() -> Config:
    config = base.get_config()
    config.model.d_model, config.model.d_ff, config.model.num_heads = 1024, 4096, 16
    config.model.dropout = 0.3
    config.training.num_steps = 300_000
    return config
