"""Errors of training: advice for out of memory, and the traceback in train.log."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.errors import CONFIGURATION, UserError
from storage.config import Config
from storage.run import Run
from training.recommendation import smaller_model

# XLA's messages for out of memory, and the amount in them.
OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")
AMOUNT = re.compile(r"(?:allocat\w+|Used) ([\d.,]+ ?(?:bytes|[KMGT]i?B?)\b)")


@contextmanager
def explain_failure(config: Config, run: Run) -> Iterator[None]:
    """Log the traceback of an error; raise UserError(CONFIGURATION) if it is out of memory."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        run.note(traceback.format_exc())
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            message = out_of_memory_message(failed_allocation(str(error)), config)
            raise UserError(CONFIGURATION, message) from error
        raise


def failed_allocation(error: str) -> str:
    """The amount that could not be allocated, from XLA's message; "" if it has none."""
    amount = AMOUNT.search(error)
    return f"{amount[1]} could not be allocated" if amount else ""


def out_of_memory_message(detail: str, config: Config) -> str:
    """The error message, with the settings to change; first those that do not change the result."""
    training, rows = config.training, config.rows_at_a_time
    options = [f"config.training.accumulate={2 * training.accumulate}"] * (rows > 1)
    options += ["config.training.loss_block=32"] * (not training.loss_block)
    options += ["config.model.remat=True"] * (not config.model.remat)
    return (
        f"out of memory{f', {detail}' if detail else ''}: "
        f"training.tokens_per_batch={training.tokens_per_batch} and training.accumulate="
        f"{training.accumulate} make {rows} rows of {config.data.source_length} + "
        f"{config.data.target_length} tokens at a time, over all devices; "
        + (f"resume with {' or '.join(options)} (slower, the same results), or " if options else "")
        + f"start over with a lower training.tokens_per_batch or {smaller_model(config)}"
    )
