"""One model for two target languages: English → German and English → Korean, by a source tag.

    TATOEBA=DIRECTORY KO_EN=DIRECTORY python train.py --config=configs/multilingual.py
    zcat DIRECTORY/dev.de.gz > dev.de
    zcat DIRECTORY/dev.en.gz | sed 's/^/>>deu<< /' | python decode.py \\
        --workdir=runs/multilingual --output=dev.out --reference=dev.de
TATOEBA contains train and dev, .en.gz and .de.gz: everyday sentences. KO_EN contains train,
dev.docs and dev.bible, .en.gz and .ko.gz: documentation, the Bible and everyday sentences. For
Korean the tag is >>kor<<. 239,573 of 239,930 pairs are kept; an epoch has 1,160 batches.

Recorded: 27.68 sacreBLEU en → de, 30.13 and 1.56 en → ko, 48 minutes on one CPU core. Details:
docs/RESULTS.md.
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


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
