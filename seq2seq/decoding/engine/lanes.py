"""The number of lanes of each length bucket. It is halved when the devices run out of memory."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import jax

from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.streams import note

HALVINGS = 3  # of the batch size when a device runs out of memory


def lanes_of(batch_size: int, bucket: int) -> int:
    """Sentences that a device searches at once; fewer for long ones, which need more memory."""
    return max(1, batch_size * 32 // max(32, bucket))


class Lanes:
    """The lanes of a device for a batch size, and how often it was halved."""

    def __init__(self, batch_size: int):
        self._batch_size, self._halvings, self._lock = batch_size, 0, Lock()

    def of(self, bucket: int) -> int:
        """Sentences of this bucket that a device searches at once."""
        return max(1, lanes_of(self._batch_size, bucket) >> self._halvings)

    def run_or_halve(
        self, lanes: int, bucket: int, run: Callable[..., Any], *arguments: Any
    ) -> Any | None:
        """run(*arguments), a batch of `lanes` sentences on each device. If it runs out of memory:
        None, and later batches have half as many lanes.

        UserError(CONFIGURATION) if smaller batches would not help. Other errors are not caught.
        """
        try:
            return run(*arguments)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            with self._lock:
                self._halve(lanes, bucket)
            return None

    def _halve(self, lanes: int, bucket: int) -> None:
        if lanes > self.of(bucket):
            return  # already halved because of another call of this size
        message = f"{lanes} sentences of up to {bucket} tokens do not fit into the device's memory"
        if self._halvings == HALVINGS or lanes == 1:
            raise UserError(
                CONFIGURATION, f"{message}; lower decoding.batch_size or decoding.beam_size"
            )
        self._halvings += 1
        note(f"{message}: trying half as many")
