"""Korean → English on the built-in corpus: the main job, minutes on two CPU cores.

    python train.py
"""

from data.config import DataConfig
from model.config import ModelConfig
from training.config import Config, DecodingConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=128,
            d_ff=512,
            num_heads=4,
            num_layers=2,
            dropout=0.0,
            max_length=128,
            norm="pre",
        ),
        data=DataConfig(
            corpus="builtin:korean_english",
            vocab_size=1500,
            source_length=64,
            target_length=64,
        ),
        training=TrainingConfig(
            num_steps=3000,
            tokens_per_batch=1024,
            schedule="cosine",
            learning_rate=2e-3,
            warmup_steps=300,
            log_every=100,
            eval_every=1500,
            checkpoint_every=500,
            keep=3,
            eval_sentences=200,
        ),
        decoding=DecodingConfig(max_extra_length=20, batch_size=32),
    )
