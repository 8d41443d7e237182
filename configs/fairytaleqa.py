"""FairytaleQA: the question to an answer and the section of a story that it is in.

    export FAIRYTALEQA=DIRECTORY
    python scripts/prepare_fairytaleqa.py --input=train.jsonl.gz --output=$FAIRYTALEQA/train.tsv
    python scripts/prepare_fairytaleqa.py --input=dev.jsonl.gz --output=$FAIRYTALEQA/dev.tsv
    python train.py --config=configs/fairytaleqa.py
    cut -f2 $FAIRYTALEQA/dev.tsv > dev.questions
    cut -f1 $FAIRYTALEQA/dev.tsv | python decode.py --workdir=runs/fairytaleqa --output=dev.out \\
        --reference=dev.questions --metric=rouge
The pairs are written to DIRECTORY. 300 of 8,548 pairs of training have a longer source than a row
and are dropped. The test set was not used.

Recorded: ROUGE-L 27.59 ± 0.28 on dev (two seeds), 28 minutes on two CPU cores. Details:
docs/RESULTS.md.
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=256, d_ff=1024, num_heads=4, num_layers=3, dropout=0.3, norm="pre",
            max_length=1024, dtype="mixed",
        ),
        data=DataConfig(
            corpus="tsv:$FAIRYTALEQA/train.tsv", valid="tsv:$FAIRYTALEQA/dev.tsv",
            tokenizer="bpe", vocab_size=8000, user_defined="<section>",
            source_length=512, target_length=64,
        ),
        training=TrainingConfig(
            num_steps=1600, tokens_per_batch=1024, schedule="cosine", learning_rate=1.5e-3,
            warmup_steps=200, log_every=100, eval_every=200, checkpoint_every=100, keep=5,
            eval_sentences=200, best_metric="loss",
        ),
        decoding=DecodingConfig(beam_size=4, alpha=1.0),
    )  # fmt: skip
