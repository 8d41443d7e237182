"""The paper's base model (table 3): 6 + 6 layers, d_model 512, 8 heads; 63 M parameters.

    python train.py --config=configs/base.py --config.data.corpus=text:train.en,train.de \\
        --config.data.valid=text:valid.en,valid.de
The default corpus is WMT 2014 of TFDS, German → English; --config.data.reverse swaps the sides.
The recipe of section 5: 25,000 target tokens a batch, 100,000 steps, Adam and equation 3. Not
trained to the end yet: no score is recorded.
"""

from seq2seq.config import Config, DataConfig, ModelConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(),
        data=DataConfig(corpus="tfds:wmt14_translate/de-en", vocab_size=37_000),
        training=TrainingConfig(clip_norm=0.0),
    )
