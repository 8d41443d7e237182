"""Train a model that is there on other data: a run, or a MarianMT (OPUS-MT) directory.

    DATA=DIRECTORY python train.py --config=configs/fine_tune.py --workdir=runs/NAME \\
        --config.training.init_from=RUN
The directory holds train.source, train.target, valid.source and valid.target; or give another
--config.data.corpus and --config.data.valid. The model's fields stay at their defaults here: then
they are those of RUN. Small steps, and an end where validation gets no better.
"""

from data.config import DataConfig
from storage.config import Config
from storage.training_config import TrainingConfig


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
