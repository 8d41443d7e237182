"""Multi30k, English → German, raw text: image captions, half an hour on two CPU cores.

    MULTI30K=DIRECTORY python train.py --config=configs/multi30k.py
DIRECTORY contains train, val and test_2016_flickr, .en.gz and .de.gz.

test_2016_flickr, sacreBLEU (cased, 13a, 2.6.0), dtype mixed, beam 5, the checkpoint that is best on
val: 40.55 ± 0.33 (40.40, 40.93 and 40.33 with seeds 0, 1 and 2; val 41.14, 40.93 and 41.06); the
three as an ensemble 41.34 (val 42.20). Seed 0 took 25 min on two otherwise idle cores of an AMD
EPYC (Zen 5), at 6,500 target tokens/s; seeds 1 and 2 took 37 min at the same time, on one core
each. jax 0.10.2, commit daba944, with these options as flags. The options were chosen on val
(benchmarks/recipes.md). With Adam, without R-Drop, and 2,048 tokens a step: 39.73 ± 0.18, and 40.99
as an ensemble (commits 777f88e and 14d772d).
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


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
            num_steps=9600, tokens_per_batch=1024, r_drop=1.0, optimizer="muon",
            schedule="cosine", learning_rate=2.5e-3, warmup_steps=800, log_every=100,
            eval_every=2400, checkpoint_every=400, keep=6, eval_sentences=0,
        ),
        decoding=DecodingConfig(beam_size=5, alpha=1.0),
    )  # fmt: skip
