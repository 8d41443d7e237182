"""Multi30k, English → German, raw text: image captions, half an hour on two CPU cores.

    MULTI30K=DIRECTORY python train.py --config=configs/multi30k.py
DIRECTORY contains train, val and test_2016_flickr, .en.gz and .de.gz.

test_2016_flickr, sacreBLEU (cased, 13a, 2.6.0), dtype mixed, beam 5, the checkpoint that is best on
val: 39.73 ± 0.18 (39.54, 39.89 and 39.75 with seeds 0, 1 and 2; val 40.26, 40.31, 40.01); the three
as an ensemble 40.99 (val 41.81); with the options that are best on val, the last checkpoints, beam
10 and alpha 1.4 (val 42.48), 40.81. Two cores of an Intel Xeon with AMX, jax 0.10.2: 33 min beside
other work (seed 0), 27 min of steps at the 11,450 target tokens/s without it; commits 777f88e
(seeds 0 and 1) and 14d772d. The options were chosen on val (benchmarks/recipes.md). 4,200 steps of
4,096 tokens, as before: 38.62 (val 39.60).

With training.optimizer=muon, 8,000 steps, a warm-up of 800 and --alpha=1.4: 39.35 ± 0.62 (39.36,
38.73 and 39.97; val 40.47 ± 0.27) in 19 to 22 min on two cores of an AMD EPYC, and 41.19 as an
ensemble (val 42.31).
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
