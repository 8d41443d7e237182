"""Models of every kind with the number of parameters of a small Transformer."""

from seq2seq.model.config import ModelConfig, num_parameters
from seq2seq.scripts.experiments.small_model import Task, small_config

LARGEST = 4  # widths up to this multiple of the Transformer's are compared


def equal_config(kind: str, task: Task, width: int, max_length: int = 256) -> ModelConfig:
    """Two layers of a kind: the Transformer of a width, or the RNN whose even width gives it the
    nearest number of parameters. Without dropout."""
    transformer = small_config(task, d_model=width, d_ff=4 * width, max_length=max_length)
    if kind == "transformer":
        return transformer
    expected, size = num_parameters(transformer), task.vocab_size

    def rnn(d_model: int) -> ModelConfig:
        return ModelConfig(
            kind=kind, source_vocab_size=size, target_vocab_size=size, d_model=d_model,
            num_layers=2, dropout=0.0, max_length=max_length,
        )  # fmt: skip

    widths = range(2, LARGEST * width + 1, 2)
    return min(map(rnn, widths), key=lambda config: abs(num_parameters(config) - expected))
