"""Korean → English: documentation, the Bible and everyday sentences, scored by domain.

    KO_EN=DIRECTORY python train.py --config=configs/korean_english_docs.py
    zcat DIRECTORY/dev.bible.en.gz > bible.en
    zcat DIRECTORY/dev.bible.ko.gz | python decode.py --workdir=runs/korean_english_docs \\
        --output=bible.out --reference=bible.en
DIRECTORY contains train, dev.docs and dev.bible, .ko.gz and .en.gz. train.py selects the checkpoint
and reports scores on dev.docs. 82,895 of 83,063 pairs are kept, and 1,590 of 1,596 for the loss on
dev.docs; the others are longer than a row. In decoding, 4 lines of dev.docs are truncated after 191
tokens, none of dev.bible.

Recorded: 39.06 sacreBLEU on dev.docs and 16.67 on dev.bible, 53 minutes on one CPU core. Details:
docs/RESULTS.md.
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=192, d_ff=768, num_heads=4, num_layers=3, dropout=0.2, norm="pre",
            max_length=256, dtype="mixed",
        ),
        data=DataConfig(
            corpus="text:$KO_EN/train.ko.gz,$KO_EN/train.en.gz",
            valid="text:$KO_EN/dev.docs.ko.gz,$KO_EN/dev.docs.en.gz",
            tokenizer="unigram", vocab_size=8000, source_length=144, target_length=160,
        ),
        training=TrainingConfig(
            num_steps=3000, tokens_per_batch=4000, schedule="cosine", learning_rate=2e-3,
            warmup_steps=400, log_every=100, eval_every=500, checkpoint_every=100, keep=6,
            eval_sentences=400,
        ),
        # In dev.bible the English has up to 51 tokens more than the Korean.
        decoding=DecodingConfig(alpha=1.0, max_extra_length=64),
    )  # fmt: skip
