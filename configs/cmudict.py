"""CMUDict: pronunciation of English words, characters → phonemes (C A T → K AE T).

    export CMUDICT=DIRECTORY D=cmudict-0.7b
    python scripts/prepare_cmudict.py --input=$D.train-dev-20-21.gz --output=$CMUDICT/train.tsv
    python scripts/prepare_cmudict.py --input=$D.train-dev-1-21.gz --output=$CMUDICT/valid.tsv \\
        --distinct --without=$D.train-dev-20-21.gz
    python scripts/prepare_cmudict.py --input=$D.test.gz --output=$CMUDICT/test.tsv --distinct
    python train.py --config=configs/cmudict.py
    cut -f1 $CMUDICT/test.tsv | python decode.py --workdir=runs/cmudict --output=test.out
    python scripts/prepare_cmudict.py --input=$D.test.gz --score=test.out
The pairs are written to DIRECTORY. The last command prints the word error rate; the exact match of
train.py compares with one pronunciation per word. All 108,699 pairs of 102,068 words are kept (253
lines of the file are duplicates). Validation excludes the 721 words that also occur in training
(mostly with other pronunciations) and has 4,726 words; the test has 11,994 words, none in training.

Recorded: word error rate 24.85 % (2,980 of 11,994 outputs equal none of the word's pronunciations;
exact match with one of them 72.3 %). 6,000 steps are 50 minutes at the 7,900 target tokens/s of
two undisturbed CPU cores (AMD EPYC; under other load they took 160), float32, jax 0.10.2, seed 0,
commit 894fc7d; best checkpoint on validation data: step 5500. Exact match on 1,000 validation
words after 1000, 2000, … 6000 steps: 57.6, 63.8, 67.8, 71.3, 71.5, 72.8 %. Training accuracy (96.4
% of phonemes) is hardly better than on validation data (95.5 %): a larger model may be better.
"""

from seq2seq.data.config import DataConfig
from seq2seq.model.config import ModelConfig
from seq2seq.storage.config import Config
from seq2seq.storage.decoding_config import DecodingConfig
from seq2seq.storage.training_config import TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=128, d_ff=512, num_heads=4, num_layers=4, dropout=0.1, norm="pre",
            max_length=72, tied_embeddings="two-way",
        ),
        data=DataConfig(
            corpus="tsv:$CMUDICT/train.tsv", valid="tsv:$CMUDICT/valid.tsv",
            test="tsv:$CMUDICT/test.tsv",
            # Two vocabularies: the letter B is not the phoneme B.
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
