"""SAMSum: a summary of a chat.

    export SAMSUM=DIRECTORY
    python scripts/prepare_samsum.py --input=samsum.zip --split=train --output=$SAMSUM/train.tsv
    python scripts/prepare_samsum.py --input=samsum.zip --split=validation \\
        --output=$SAMSUM/valid.tsv
    python scripts/prepare_samsum.py --input=samsum.zip --split=test --output=$SAMSUM/test.tsv
    python train.py --config=configs/samsum.py
    cut -f2 $SAMSUM/test.tsv > test.summaries
    cut -f1 $SAMSUM/test.tsv | python decode.py --workdir=runs/samsum --output=test.out \\
        --reference=test.summaries --metric=rouge
The pairs are written to DIRECTORY. Rows of 512 tokens lose 1.5 % of the pairs and are as fast for
each pair as rows of 256 (benchmarks/long_sources.md).

ROUGE-1, -2, -L and -Lsum (F1, stemmer, rouge-score 0.1.2) of the test set, 819 chats: 39.61, 15.22,
31.13 and 35.52 with seed 0, 39.66, 15.89, 31.65 and 35.76 with seed 1. Published, from scratch:
about 36.6, 11.2 and 33.1 (Transformer), 40.1, 15.3 and 36.6 (pointer-generator); which of the two
ROUGE-L these report was not checked. The checkpoints, steps 6,000 and 4,000, are the best on the
first 200 validation chats, translated with alpha 1; alpha was then chosen on all validation chats
(benchmarks/recipes.md). Trained on one NVIDIA H100 beside other runs, jax 0.11.2, commit 600ac80,
with training.checkpoint_every=2000 and training.keep=1: 7 minutes each; the steps alone take 3
minutes without other runs.
"""

from seq2seq.data.config import DataConfig
from seq2seq.model.config import ModelConfig
from seq2seq.storage.config import Config
from seq2seq.storage.decoding_config import DecodingConfig
from seq2seq.storage.training_config import TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=256, d_ff=1024, num_heads=4, num_layers=3, dropout=0.3, norm="pre",
            max_length=1024, positions="relative", dtype="mixed",
        ),
        data=DataConfig(
            corpus="tsv:$SAMSUM/train.tsv", valid="tsv:$SAMSUM/valid.tsv",
            test="tsv:$SAMSUM/test.tsv", tokenizer="bpe", vocab_size=8000,
            user_defined="<turn>", source_length=512, target_length=128,
        ),
        training=TrainingConfig(
            optimizer="muon", num_steps=8000, tokens_per_batch=2048, schedule="cosine",
            learning_rate=1.5e-3, warmup_steps=400, log_every=100, eval_every=2000,
            checkpoint_every=100, keep=5, eval_sentences=200,
        ),
        decoding=DecodingConfig(beam_size=4, alpha=1.2, no_repeat_ngram=3),
    )  # fmt: skip
