"""Korean → English: documentation, the Bible and everyday sentences, scored by domain.

    KO_EN=DIRECTORY python train.py --config=configs/korean_english_docs.py
    zcat DIRECTORY/dev.bible.en.gz > bible.en
    zcat DIRECTORY/dev.bible.ko.gz | python decode.py --workdir=runs/korean_english_docs \\
        --output=bible.out --reference=bible.en
DIRECTORY contains train, dev.docs and dev.bible, .ko.gz and .en.gz. train.py selects the checkpoint
and reports scores on dev.docs. 82,895 of 83,063 pairs are kept, and 1,590 of 1,596 for the loss on
dev.docs; the others are longer than a row. In decoding, 4 lines of dev.docs are truncated after 191
tokens, none of dev.bible.

Recorded, by domain: documentation (dev.docs, 1,596 sentences, of which the first 400 selected the
checkpoint) 39.06 sacreBLEU (nrefs:1|case:mixed|tok:13a; lower-cased tokenised BLEU 15.99, chrF2
51.97); the Bible (dev.bible, 778, not used for training or selection) 16.67 (13.12, 38.58). 53
minutes on one of two cores of an Intel Xeon with AMX, whose other core did other work, jax 0.10.2,
seed 0, commit 3f4f053; best checkpoint: the average of the last six. BLEU of the 400 after 500,
1000, … 3000 steps: 19.1, 27.7, 36.1, 40.1, 42.2, 43.1; of the average 43.2. In float32, with an
earlier order of the data (commit ab2621f), 39.85 and 16.53: the spread of seeds is not known.
"""

from seq2seq.data.config import DataConfig
from seq2seq.model.config import ModelConfig
from seq2seq.storage.config import Config
from seq2seq.storage.decoding_config import DecodingConfig
from seq2seq.storage.training_config import TrainingConfig


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
