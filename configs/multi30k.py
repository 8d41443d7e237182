"""Multi30k, English → German, raw text: image captions, half an hour on two CPU cores.

    MULTI30K=DIRECTORY python train.py --config=configs/multi30k.py
DIRECTORY contains train, val and test_2016_flickr, .en.gz and .de.gz.

test_2016_flickr, seed 0, dtype mixed, the average of the last six checkpoints (val: 40.26; that
of the last step: 40.20), beam 5: 39.54 sacreBLEU (cased, 13a, 2.6.0); lower-cased tokenised BLEU
38.33. 33 min on two cores of an Intel Xeon with AMX beside other work (jax 0.10.2; 27 min of steps
at the 11,450 target tokens/s without it); commit 777f88e. The options were chosen on val
(benchmarks/recipes.md). 4,200 steps of 4,096 tokens, as before: 38.62 (val 39.60).
"""

from seq2seq.data.config import DataConfig
from seq2seq.model.config import ModelConfig
from seq2seq.storage.config import Config
from seq2seq.storage.decoding_config import DecodingConfig
from seq2seq.storage.training_config import TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=128, d_ff=512, num_heads=4, num_layers=4, dropout=0.2, norm="pre",
            max_length=256, dtype="mixed",
        ),
        data=DataConfig(
            corpus="text:$MULTI30K/train.en.gz,$MULTI30K/train.de.gz",
            valid="text:$MULTI30K/val.en.gz,$MULTI30K/val.de.gz",
            test="text:$MULTI30K/test_2016_flickr.en.gz,$MULTI30K/test_2016_flickr.de.gz",
            tokenizer="bpe", vocab_size=5000, source_length=64, target_length=64,
        ),
        training=TrainingConfig(
            num_steps=9600, tokens_per_batch=2048, schedule="cosine", learning_rate=2.5e-3,
            warmup_steps=1000, log_every=100, eval_every=1600, checkpoint_every=100, keep=6,
            eval_sentences=0,
        ),
        decoding=DecodingConfig(beam_size=5, alpha=1.0),
    )  # fmt: skip
