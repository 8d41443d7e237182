"""When training ends: after a number of steps, epochs or hours, or without further improvement."""

from time import monotonic

from runtime import processes
from storage.config import TrainingConfig


class Stopwatch:
    """Seconds of training in all sessions of a run, up to the last `update`.

    Process 0 measures them, and its `max_hours` ends the training of all processes. In the others
    the value does not change.
    """

    def __init__(self, earlier: float):
        """`earlier` are the seconds of the earlier sessions, which a checkpoint stores."""
        self.seconds, self._start = earlier, monotonic() - earlier

    def update(self) -> None:
        """Count the time since the last update."""
        if processes.is_first():
            self.seconds = monotonic() - self._start


def reached_limit(
    config: TrainingConfig, step: int, epoch: int, seconds: float, without_improvement: int
) -> str:
    """The limit that training has reached, such as "training.max_epochs=3"; "" if it continues.

    `epoch` is that of the next batch, which is the number of complete epochs.
    """
    reached = {
        "num_steps": step,
        "max_epochs": epoch,
        "max_hours": seconds / 3600,
        "patience": without_improvement,
    }
    for name, value in reached.items():
        limit = getattr(config, name)
        if 0 < limit <= value:
            return f"training.{name}={limit}"
    return ""


def seconds_left(
    config: TrainingConfig, step: int, seconds: float, seconds_per_step: float
) -> float:
    """The time until training.num_steps or training.max_hours, whichever comes first."""
    left = (config.num_steps - step) * seconds_per_step
    return min(left, max(0.0, 3600 * config.max_hours - seconds)) if config.max_hours else left
