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

Recorded: 41.17 ± 0.51 BLEU without tokenisation (two seeds), 110 minutes on two CPU cores. Details:
docs/RESULTS.md.
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


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
