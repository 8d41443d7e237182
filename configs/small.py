"""A small model for a first training on your own text: 20 thousand to a million pairs.

    python train.py --config=configs/small.py --workdir=runs/mine \\
        --config.data.corpus=text:train.de,train.en --config.data.valid=text:valid.de,valid.en
Without these two fields, DATA=DIRECTORY contains train.source, train.target, valid.source and
valid.target. 4.6 million parameters with a vocabulary of 8,000.

Recorded: 38.32 sacreBLEU on Multi30k, test_2016_flickr, 23 minutes on two CPU cores. Details:
docs/RESULTS.md.
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=192, d_ff=768, num_heads=4, num_layers=3, dropout=0.15, norm="pre",
            max_length=256,
        ),
        data=DataConfig(
            corpus="text:$DATA/train.source,$DATA/train.target",
            valid="text:$DATA/valid.source,$DATA/valid.target",
            tokenizer="unigram", vocab_size=8000, source_length=128, target_length=128,
        ),
        training=TrainingConfig(
            num_steps=2500, tokens_per_batch=4096, schedule="cosine", learning_rate=2e-3,
            warmup_steps=300, log_every=50, eval_every=500, checkpoint_every=100, keep=6,
            eval_sentences=500,
        ),
        decoding=DecodingConfig(alpha=1.0, max_extra_length=50),
    )  # fmt: skip
