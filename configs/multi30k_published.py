"""Multi30k, English → German, as published: lower-cased tokenised text, a tiny post-norm model.

    MULTI30K=DIRECTORY python train.py --config=configs/multi30k_published.py
    zcat DIRECTORY/test_2016_flickr.lc.norm.tok.de.gz > test.de
    zcat DIRECTORY/test_2016_flickr.lc.norm.tok.en.gz | python decode.py \\
        --workdir=runs/multi30k_published --checkpoint=average --output=test.out --reference=test.de
DIRECTORY contains train, val and test_2016_flickr, .lc.norm.tok.en.gz and .lc.norm.tok.de.gz. The
recipe of the 41.02 BLEU of a text-only model on this test: 4 + 4 layers, dropout 0.3, BPE of
10,000, peak learning rate 0.005 after 2,000 steps, 8,000 steps of 8,192 tokens, the average of the
last ten checkpoints (one an epoch), beam 5; BLEU without further tokenisation, which is the
"lower-cased tokenised BLEU" that decode.py prints.

Recorded: 41.17 ± 0.51 (nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.6.0), dtype mixed,
jax 0.10.2:
- seed 0: 41.53 (41.51 as sacreBLEU tokenises). 8,000 steps of 143 epochs are 110 minutes at the
  9,500 target tokens/s of two undisturbed CPU cores (AMD EPYC with AVX512-BF16; under other load
  they took longer, in two parts), commit e4b9733, an earlier order of the data. Validation
  sacreBLEU after 1000, 2000, … 8000 steps: 27.0, 36.3, 40.3, 40.8, 41.2, 41.2, 40.6,
  41.0; of the average 41.7.
- seed 1: 40.81. 117 minutes at 0.88 s a step (Intel Xeon with AMX; in two parts as well), commit
  a84592d. Validation: 27.3, 37.6, 39.6, 41.0, 42.0, 41.7, 41.3, 40.8; of the average 41.7.
"""

from seq2seq.data.config import DataConfig
from seq2seq.model.config import ModelConfig
from seq2seq.storage.config import Config
from seq2seq.storage.decoding_config import DecodingConfig
from seq2seq.storage.training_config import TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=128, d_ff=256, num_heads=4, num_layers=4, dropout=0.3, max_length=256,
            attention_bias=True, layer_norm_epsilon=1e-5, dtype="mixed",
        ),
        data=DataConfig(
            corpus="text:$MULTI30K/train.lc.norm.tok.en.gz,$MULTI30K/train.lc.norm.tok.de.gz",
            valid="text:$MULTI30K/val.lc.norm.tok.en.gz,$MULTI30K/val.lc.norm.tok.de.gz",
            test="text:$MULTI30K/test_2016_flickr.lc.norm.tok.en.gz,"
            "$MULTI30K/test_2016_flickr.lc.norm.tok.de.gz",
            tokenizer="bpe", vocab_size=10_000, source_length=64, target_length=64,
        ),
        training=TrainingConfig(
            num_steps=8000, tokens_per_batch=8192,
            # The factor on equation 3 that peaks at 0.005 = factor · 128^−½ · 2000^−½.
            learning_rate=0.005 * (128 * 2000) ** 0.5, warmup_steps=2000,
            log_every=100, eval_every=1000, checkpoint_every=50, keep=10, eval_sentences=0,
        ),
        decoding=DecodingConfig(beam_size=5, alpha=1.0),
    )  # fmt: skip
