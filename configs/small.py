"""A small model for a first training on your own text: 20 thousand to a million pairs.

    python train.py --config=configs/small.py --workdir=runs/mine \\
        --config.data.corpus=text:train.de,train.en --config.data.valid=text:valid.de,valid.en
Without these two fields, DATA=DIRECTORY contains train.source, train.target, valid.source and
valid.target. 4.6 million parameters with a vocabulary of 8,000.

Recorded on the 29,000 pairs of Multi30k, English → German (corpus, valid and test as in
configs/multi30k.py): 38.32 sacreBLEU on test_2016_flickr (nrefs:1|case:mixed|tok:13a; lower-cased
tokenised BLEU 36.88), with the average of the last six checkpoints, the best on val. 2,500 steps
of 0.55 s are 23 minutes of two undisturbed CPU cores (AMD EPYC), measured over the steps 50 to 150;
the whole command, with five evaluations and the test, used 44 minutes of processor time and 3.4 GB
of memory (under other load it took 87 minutes). float32, jax 0.10.2, seed 0, commit e6e6034. BLEU
of 500 sentences of val after 500, 1000, … 2500 steps: 30.3, 37.2, 40.3, 40.5, 40.6; of the average
40.9. No other options and no larger corpus were tried.
"""

from seq2seq.data.config import DataConfig
from seq2seq.model.config import ModelConfig
from seq2seq.storage.config import Config
from seq2seq.storage.decoding_config import DecodingConfig
from seq2seq.storage.training_config import TrainingConfig


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            d_model=192, d_ff=768, num_heads=4, num_layers=3, dropout=0.15, norm="pre",
            max_length=256,
        ),
        data=DataConfig(
            corpus="text:$DATA/train.source,$DATA/train.target",
            valid="text:$DATA/valid.source,$DATA/valid.target",
            tokenizer="unigram", vocab_size=8000, source_length=128, target_length=128,
        ),
        training=TrainingConfig(
            num_steps=2500, tokens_per_batch=4096, schedule="cosine", learning_rate=2e-3,
            warmup_steps=300, log_every=50, eval_every=500, checkpoint_every=100, keep=6,
            eval_sentences=500,
        ),
        decoding=DecodingConfig(alpha=1.0, max_extra_length=50),
    )  # fmt: skip
