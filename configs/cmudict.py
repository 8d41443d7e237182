"""CMUDict: how English words are pronounced, characters → phonemes (C A T → K AE T).

    export CMUDICT=DIRECTORY D=cmudict-0.7b
    python scripts/prepare_cmudict.py --input=$D.train-dev-20-21.gz --output=$CMUDICT/train.tsv
    python scripts/prepare_cmudict.py --input=$D.train-dev-1-21.gz --output=$CMUDICT/valid.tsv \\
        --distinct --without=$D.train-dev-20-21.gz
    python scripts/prepare_cmudict.py --input=$D.test.gz --output=$CMUDICT/test.tsv --distinct
    python train.py --config=configs/cmudict.py
    cut -f1 $CMUDICT/test.tsv | python decode.py --workdir=runs/cmudict --output=test.out
    python scripts/prepare_cmudict.py --input=$D.test.gz --score=test.out
DIRECTORY is where the pairs go. The last command prints the word error rate; train.py's exact
match knows only one pronunciation of each word. All 108,699 pairs of 102,068 words are kept (253
lines of the file are repeated); validation leaves out the 721 words that training has too (with
other pronunciations mostly), which leaves 4,726; the test has 11,994 words, none in training.
Sized for three quarters of an hour on two CPU cores, not yet run. No score is recorded yet.
"""

from data.config import DataConfig
from model.config import ModelConfig
from training.config import Config, DecodingConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=128, d_ff=512, num_heads=4, num_layers=4, dropout=0.1, norm="pre",
            max_length=72, tied_embeddings="two-way",
        ),
        data=DataConfig(
            corpus="tsv:$CMUDICT/train.tsv", valid="tsv:$CMUDICT/valid.tsv",
            test="tsv:$CMUDICT/test.tsv",
            # Two vocabularies: B the letter is not B the phoneme.
            tokenizer="words", joint_vocab=False, vocab_size=64, source_length=72,
            target_length=64,
        ),
        training=TrainingConfig(
            num_steps=6000, tokens_per_batch=4096, schedule="cosine", learning_rate=2e-3,
            warmup_steps=600, log_every=100, eval_every=500, checkpoint_every=100, keep=6,
            eval_sentences=1000,
        ),
        # The longest pronunciation has 9 phonemes more than its word has characters.
        decoding=DecodingConfig(max_extra_length=12, batch_size=64),
    )  # fmt: skip
