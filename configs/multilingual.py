"""One model for two languages: English → German and English → Korean, with a tag per direction.

TATOEBA=DIRECTORY KO_EN=DIRECTORY python train.py --config=configs/multilingual.py
"""

from data.config import DataConfig
from model.config import ModelConfig
from storage.config import Config
from storage.decoding_config import DecodingConfig
from storage.training_config import TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=192, d_ff=768, num_heads=4, num_layers=3, dropout=0.1, norm="pre",
            max_length=256, dtype="mixed",
        ),
        data=DataConfig(
            corpus="tag:>>deu<<:text:$TATOEBA/train.en.gz,$TATOEBA/train.de.gz + "
                   "tag:>>kor<<:text:$KO_EN/train.en.gz,$KO_EN/train.ko.gz",
            valid="tag:>>deu<<:text:$TATOEBA/dev.en.gz,$TATOEBA/dev.de.gz + "
                  "tag:>>kor<<:text:$KO_EN/dev.docs.en.gz,$KO_EN/dev.docs.ko.gz",
            tokenizer="unigram", vocab_size=8000, source_length=128, target_length=128,
        ),
        training=TrainingConfig(
            num_steps=2000, tokens_per_batch=4096, schedule="cosine", learning_rate=2e-3,
            warmup_steps=300, log_every=50, eval_every=500, checkpoint_every=100, keep=6,
            eval_sentences=400,
        ),
        decoding=DecodingConfig(alpha=1.0, max_extra_length=50),
    )  # fmt: skip
