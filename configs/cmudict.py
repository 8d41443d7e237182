"""CMUDict: pronunciation of English words, characters → phonemes (C A T → K AE T).

    export CMUDICT=DIRECTORY D=cmudict-0.7b
    zcat $D.train-dev-1-21.gz | awk 'NR % 5 == 0' > $CMUDICT/valid.txt
    (zcat $D.train-dev-20-21.gz; zcat $D.train-dev-1-21.gz | awk 'NR % 5') > $CMUDICT/train.txt
    python scripts/prepare_cmudict.py --input=$CMUDICT/train.txt --output=$CMUDICT/train.tsv
    python scripts/prepare_cmudict.py --input=$CMUDICT/valid.txt --output=$CMUDICT/valid.tsv \\
        --distinct --without=$CMUDICT/train.txt
    python scripts/prepare_cmudict.py --input=$D.test.gz --output=$CMUDICT/test.tsv --distinct
    python train.py --config=configs/cmudict.py
    cut -f1 $CMUDICT/test.tsv | python decode.py --workdir=runs/cmudict --checkpoint=latest \\
        --output=test.out
    python scripts/prepare_cmudict.py --input=$D.test.gz --score=test.out
The files are written to DIRECTORY. The last command prints the word error rate; the exact match of
train.py compares with one pronunciation per word. Training has 113,038 pairs of 105,838 words: the
published training and development set without every fifth line of its smaller file. Validation has
the 956 words of those lines that do not occur in training, the test 11,994 words, none in training.

Recorded: word error rate 22.72 ± 0.21 % on the test (three seeds), 58 minutes each on two CPU
cores. Details: docs/RESULTS.md.
"""

from seq2seq.config import Config, DataConfig, DecodingConfig, ModelConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=128, d_ff=512, num_heads=4, num_layers=6, num_decoder_layers=2, dropout=0.1,
            norm="pre", positions="rotary", max_length=72, tied_embeddings="two-way", dtype="mixed",
        ),
        data=DataConfig(
            corpus="tsv:$CMUDICT/train.tsv", valid="tsv:$CMUDICT/valid.tsv",
            test="tsv:$CMUDICT/test.tsv",
            # Two vocabularies: the letter B is not the phoneme B.
            tokenizer="words", joint_vocab=False, vocab_size=64, source_length=72,
            target_length=64,
        ),
        training=TrainingConfig(
            num_steps=10_000, tokens_per_batch=2048, r_drop=2.0, optimizer="muon",
            schedule="cosine", learning_rate=4e-3, warmup_steps=500,
            log_every=100, eval_every=2500, checkpoint_every=100, keep=6, eval_sentences=0,
        ),
        # The longest pronunciation has 9 phonemes more than its word has characters.
        decoding=DecodingConfig(max_extra_length=12, batch_size=64),
    )  # fmt: skip
