"""TrainingConfig: optimizer, learning rate schedule, batch size, checkpoints and evaluation."""

import re
from dataclasses import dataclass

from seq2seq.model.options import Options, option

BLEU_TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char", "none")  # as sacreBLEU names them


@dataclass(unsafe_hash=True)
class TrainingConfig(Options):
    """How a model is trained; every field is a flag `--config.training.NAME=VALUE`."""

    section = "training"

    num_steps: int = option(
        100_000, "optimizer steps of the whole run", unit="steps", minimum=1, below=2**31
    )
    max_epochs: int = option(
        0,
        "passes over the training data after which training ends before num_steps; 0: no limit",
        unit="epochs",
        minimum=0,
    )
    max_hours: float = option(
        0.0,
        "hours of training, over all sessions of the run, after which training ends before "
        "num_steps; 0: no limit",
        unit="hours",
        minimum=0,
    )
    tokens_per_batch: int = option(
        25_000,
        "target tokens of one global batch, padding included: tokens_per_batch // "
        "data.target_length packed rows, for any number of devices",
        unit="tokens",
        minimum=1,
    )
    accumulate: int = option(
        1,
        "micro-batches whose gradients are summed before one update: less memory, same result",
        unit="micro-batches",
        minimum=1,
    )
    optimizer: str = option(
        "adam",
        "adam (AdamW with weight_decay); adafactor: sums of rows and columns instead of Adam's "
        "moments, so much less memory, and learning_rate is relative to the root mean square of "
        "each parameter; muon: orthogonal updates of the weight matrices, Adam for the rest",
        choices=("adam", "adafactor", "muon"),
    )
    schedule: str = option(
        "paper",
        "paper: equation 3 × learning_rate; the others warm up to learning_rate, then: "
        "inverse_sqrt: × √(warmup_steps / step); cosine, linear: decay to 0 at num_steps; "
        "constant: stay there",
        choices=("paper", "inverse_sqrt", "cosine", "linear", "constant"),
    )
    learning_rate: float = option(
        1.0, "peak learning rate; with schedule=paper, a factor on equation 3", minimum=0
    )
    warmup_steps: int = option(
        4000, "steps over which the learning rate rises", unit="steps", minimum=1, below=2**31
    )
    adam_b1: float = option(0.9, "decay of Adam's first moment", minimum=0, below=1)
    adam_b2: float = option(0.98, "decay of Adam's second moment", minimum=0, below=1)
    adam_epsilon: float = option(1e-9, "Adam's epsilon", above=0)
    weight_decay: float = option(
        0.0,
        "decoupled weight decay, × the learning rate; not applied to biases and layer norms",
        minimum=0,
    )
    clip_norm: float = option(
        1.0, "maximum global norm of the gradient; 0 does not clip", minimum=0
    )
    label_smoothing: float = option(
        0.1,
        "probability that the label distribution spreads over the vocabulary",
        unit="probability",
        minimum=0,
        below=1,
    )
    model_parallel: int = option(
        1,
        "devices that share one copy of the model, for models that are larger than one device; a "
        "divisor of the heads, of d_ff and of the devices of a host",
        unit="devices",
        minimum=1,
        maximum=256,
    )
    r_drop: float = option(
        0.0,
        "weight of R-Drop: each batch is passed twice, and the divergence of the two distributions "
        "of each token, which differ by dropout, is added to the loss; a step takes about twice "
        "the time and memory; 0: one pass",
        minimum=0,
    )
    loss_block: int = option(
        0,
        "target positions whose logits are in memory at once in the loss; 0: all",
        unit="tokens",
        minimum=0,
    )
    ema_decay: float = option(
        0.0,
        "decay of a moving average of the parameters, which is evaluated and decoded in their "
        "place; 0: no average",
        minimum=0,
        below=1,
    )
    init_from: str = option(
        "",
        "run, or directory of another project (docs/MODELS.md), a path, URL or "
        "hf://OWNER/NAME[@REVISION], whose best parameters and vocabulary training starts from. "
        "Fields of config.model at their defaults are taken from that model, except the dropout "
        "rates, dtype, remat and attention_kernels; the tokenizer and vocabulary fields of "
        "config.data are ignored",
    )
    freeze: str = option(
        "",
        "patterns of paths of parameters that are not trained, separated by commas, as in "
        "encoder/*,*embedding* (* is any text, ? one character)",
    )
    seed: int = option(  # jax.random.PRNGKey uses 32 bits
        0, "of initialisation, dropout and data order", minimum=0, below=2**32
    )
    log_every: int = option(100, "steps between two log lines", unit="steps", minimum=1)
    eval_every: int = option(
        5000,
        "steps between two evaluations; a multiple of checkpoint_every, so that every evaluated "
        "step has a checkpoint",
        unit="steps",
        minimum=1,
    )
    checkpoint_every: int = option(1000, "steps between two checkpoints", unit="steps", minimum=1)
    keep: int = option(
        5,
        "number of latest checkpoints that are kept in addition to the best one; they are averaged "
        "after the last step",
        unit="checkpoints",
        minimum=1,
    )
    best_metric: str = option(
        "bleu",
        "metric on the (first) validation set that selects the best checkpoint: bleu, chrf (higher "
        "is better) or loss (lower is better); of equal scores the lower loss decides",
        choices=("bleu", "chrf", "loss"),
    )
    bleu_tokenizer: str = option(
        "13a",
        "tokenizer of BLEU in evaluations, as sacreBLEU names it: 13a; zh, ja-mecab and ko-mecab "
        "for Chinese, Japanese and Korean targets; char; none: split at spaces",
        choices=BLEU_TOKENIZERS,
    )
    patience: int = option(
        0,
        "early stopping: stop after this many evaluations in a row without improvement; 0: never",
        unit="evaluations",
        minimum=0,
    )
    skip_nonfinite: int = option(
        0,
        "maximum number of consecutive steps with a non-finite loss or gradient that are skipped; "
        "the next one stops training",
        unit="steps",
        minimum=0,
    )
    allow_data_change: bool = option(
        False,
        "resume although the data files, or the order in which this version reads them, have "
        "changed; from epoch 0",
    )
    deterministic: bool = option(
        False,
        "bit-identical results on a GPU, which are slower (XLA's deterministic operations); on a "
        "CPU results are always bit-identical",
    )
    eval_sentences: int = option(
        500,
        "sentences of each validation set translated for BLEU and chrF in each evaluation; 0: all",
        unit="sentences",
        minimum=0,
    )
    profile: str = option(
        "",
        "FIRST:LAST, as in 10:12: write a profiler trace of these steps to RUN/profile",
        unit="steps",
    )

    def check_rules(self) -> None:
        """The rules that concern several fields. Raises ValueError."""
        if profile_steps(self.profile)[1] > self.num_steps:
            raise ValueError(
                f"training.profile={self.profile} ends after training.num_steps="
                f"{self.num_steps}; a trace is written after its last step"
            )
        for name in ("adam_b1", "adam_b2", "adam_epsilon"):
            if self.optimizer != "adam" and getattr(self, name) != getattr(TrainingConfig, name):
                raise ValueError(
                    f"training.{name}={getattr(self, name)} has no effect with "
                    f"training.optimizer={self.optimizer}: expected the default, "
                    f"{getattr(TrainingConfig, name)}; remove it or set training.optimizer=adam"
                )
        if self.eval_every % self.checkpoint_every:
            raise ValueError(
                "training.eval_every must be a multiple of training.checkpoint_every, got "
                f"{self.eval_every} and {self.checkpoint_every}"
            )


def profile_steps(spec: str) -> tuple[int, int]:
    """ "10:12" → (10, 12), "" → (0, 0). Raises ValueError if `spec` is malformed."""
    match = re.fullmatch(r"(\d+):(\d+)", spec or "0:0", re.ASCII)
    first, last = map(int, match.groups()) if match else (0, 0)
    if spec and not 1 <= first <= last:
        raise ValueError(
            f"training.profile must be FIRST:LAST, steps from 1 on as in 10:12, got {spec!r}"
        )
    return first, last
