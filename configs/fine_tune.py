"""Fine-tune a run or a model of another project (docs/MODELS.md) on other data.

    DATA=DIRECTORY python train.py --config=configs/fine_tune.py --workdir=runs/NAME \\
        --config.training.init_from=RUN
DIRECTORY contains train.source, train.target, valid.source and valid.target; or set
--config.data.corpus and --config.data.valid. The fields of config.model stay at their defaults, so
they are taken from RUN, except the dropout rates, dtype, remat and attention_kernels. A small
learning rate, and early stopping on validation data.
"""

from seq2seq.config import Config, DataConfig, TrainingConfig


def get_config() -> Config:
    return Config(
        data=DataConfig(
            corpus="text:$DATA/train.source,$DATA/train.target",
            valid="text:$DATA/valid.source,$DATA/valid.target",
            source_length=128, target_length=128,
        ),
        training=TrainingConfig(
            num_steps=20_000, tokens_per_batch=8_192, schedule="constant", learning_rate=3e-5,
            warmup_steps=400, eval_every=1000, checkpoint_every=500, patience=4, keep=3,
        ),
    )  # fmt: skip
