"""What is said when training fails: too little memory as advice, and the traceback in train.log."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.errors import CONFIGURATION, UserError
from storage.config import Config
from storage.run import Run

# How XLA says that memory is short, and the number in it.
SHORT = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")
AMOUNT = re.compile(r"(?:allocat\w+|Used) ([\d.,]+ ?(?:bytes|[KMGT]i?B?)\b)")


@contextmanager
def explained(config: Config, run: Run) -> Iterator[None]:
    """Around training. Raises UserError(CONFIGURATION) where a device has too little memory."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        run.note(traceback.format_exc())
        if isinstance(error, MemoryError) or SHORT.search(str(error)):
            raise UserError(CONFIGURATION, too_little_memory(lack(str(error)), config)) from error
        raise


def lack(error: str) -> str:
    """What could not be allocated, as XLA's message says; "" where it does not say."""
    amount = AMOUNT.search(error)
    return f"{amount[1]} could not be allocated" if amount else ""


def too_little_memory(lacking: str, config: Config) -> str:
    """What did not fit, and which settings to lower; first those that do not change the result."""
    training, rows = config.training, config.rows_at_a_time
    saving = [f"config.training.accumulate={2 * training.accumulate}"] * (rows > 1)
    saving += ["config.training.loss_block=32"] * (not training.loss_block)
    saving += ["config.model.remat=True"] * (not config.model.remat)
    return (
        f"out of memory{f', {lacking}' if lacking else ''}: "
        f"training.tokens_per_batch={training.tokens_per_batch} and training.accumulate="
        f"{training.accumulate} make {rows} rows of {config.data.source_length} + "
        f"{config.data.target_length} tokens at a time, over all devices; "
        + (
            f"continue with {' or '.join(saving)} (slower, the same training), or "
            if saving
            else ""
        )
        + "start anew with a lower training.tokens_per_batch or a smaller model"
    )
