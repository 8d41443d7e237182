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
each pair as rows of 256 (benchmarks/recipes.md).

Recorded: ROUGE-1 39.64, ROUGE-2 15.56, ROUGE-Lsum 35.64 on the test (two seeds), 7 minutes on an
H100. Details: docs/RESULTS.md.
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


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
