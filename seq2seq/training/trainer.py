"""The trainer: the loop of steps, evaluations and checkpoints, from start or resume to the end.

The devices do not wait for the host: a thread makes and places the next batches
(`Batches.iterate`), a step is reported after the next one has been started, and a thread writes the
checkpoints.
"""

from contextlib import closing
from typing import Any

import jax

from seq2seq.data.batching.batches import DataPosition
from seq2seq.data.batching.packing import Batch
from seq2seq.runtime import processes
from seq2seq.runtime.devices import wait_on_cpu
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.prefetch import Prefetched
from seq2seq.runtime.signals import Status, Stopped
from seq2seq.storage.sizes import disk_forecast
from seq2seq.training.memory_check import with_memory_check
from seq2seq.training.optimizer import learning_rate_schedule
from seq2seq.training.parallel import (
    local_copy,
    parallel_train_step,
    place_params,
    place_rows,
    place_state,
)
from seq2seq.training.parts import TrainingParts
from seq2seq.training.progress import Progress, Stopwatch, announce, reached_limit, with_profile
from seq2seq.training.step import TrainState, make_train_step

BatchStream = Prefetched[tuple[DataPosition, Batch, DataPosition]]  # Batches.iterate

# The time at most to wait at the end for a batch that the thread still makes or places.
LAST_BATCH_SECONDS = 10.0


class Trainer:
    """Trains a model from its `state`, a fresh or a restored one, to the end.

    The state of training is `state` (parameters, optimizer, key), `step` (the number of steps
    done), `position` (of the next batch), `evaluator.best` and `stopwatch`; a checkpoint stores all
    of it.
    """

    def __init__(
        self, parts: TrainingParts, state: TrainState, position: DataPosition, seconds: float
    ):
        """`position` is that of the next batch, `seconds` is the time of training so far."""
        config, training = parts.config, parts.config.training
        self.config, self.run, self.data, self.stop = config, parts.run, parts.data, parts.stop
        self.model, self.translator, self.batches = parts.model, parts.translator, parts.batches
        self.evaluator, self.checkpoints = parts.evaluator, parts.checkpoints
        self.start_step = self.saved_step = self.step = int(state.step)
        self.state, self.position = place_state(state), position
        self.stopwatch = Stopwatch(seconds)
        train_step = make_train_step(self.model, parts.optimizer, training)
        step = parallel_train_step(train_step, training.model_parallel)
        self._train_step = with_profile(
            with_memory_check(step, config),
            training.profile,
            self.run.path / "profile",
            self.step,
        )
        self._learning_rate = jax.jit(learning_rate_schedule(training, config.model.d_model))
        self._progress = Progress(
            self.run, training, self.step, self._pair_locations, self.stopwatch
        )
        # The step that is not reported yet, its metrics, and the position of its batch.
        self._running: tuple[int, dict[str, jax.Array], DataPosition] | None = None

    def train(self) -> None:
        """Train to the end. On a signal, save a checkpoint and raise Stopped."""
        stream = self.batches.iterate(self.position, self._place)
        with closing(self.checkpoints):
            try:
                self._train_on(stream)
            finally:
                stream.close()
                self.batches.close()
                stream.join(LAST_BATCH_SECONDS)

    def _train_on(self, stream: BatchStream) -> None:
        # The plan of the first window takes seconds for a large corpus.
        raise_if_stopped(self.stop.agreed_status(stream.ready))
        announce(self.config, self.run, self.batches, self.position)
        self._log_disk_forecast()
        was_complete = self.checkpoints.complete
        self._do_steps(stream, evaluates_first=not was_complete)
        stream.close()
        self._save_last_step()
        raise_if_stopped(self.stop.agreed_status())
        if was_complete and self.step == self.start_step:
            self.run.log(f"already complete at step {self.step}")
        else:
            self._complete()

    def _do_steps(self, stream: BatchStream, evaluates_first: bool) -> None:
        """Train until a limit is reached or a signal is received."""
        self._progress.restart()
        is_interrupted = evaluates_first and self._evaluate_if_due()
        while not is_interrupted and self._continues(stream):
            self._do_step(stream)
            is_interrupted = self._evaluate_if_due()
            self.stopwatch.update()
            self._save_if_due()
        self._finish_step()

    def _continues(self, stream: BatchStream) -> bool:
        """Whether to do another step: all processes have a batch, and none a signal or a limit.

        Several processes compare this at the start of a step, for the end of it: a signal or
        training.max_hours takes effect one step later than in a single process.
        """
        status = self.stop.agreed_status(stream.ready, bool(self._reached_limit()))
        return not (status.signal or status.finished)

    def _reached_limit(self) -> str:
        """The limit that has been reached, or ""; training.max_hours in process 0 only."""
        best = self.evaluator.best
        return reached_limit(
            self.config.training,
            self.step,
            self.position.epoch,
            self.stopwatch.seconds,
            best.without_improvement,
        )

    def _log_disk_forecast(self) -> None:
        message, fits = disk_forecast(self.run.path, self.state, self.config.training.keep)
        self.run.log(message if fits else f"warning: {message}")

    def _place(self, batch: Batch) -> Batch:
        """[rows, …] → [copies, micro-batches, B, …], on the copies of this process."""
        return place_rows(batch, self.config.training)

    def _do_step(self, stream: BatchStream) -> None:
        """Start a training step on the next batch, then report the step before it."""
        position, batch, next_position = next(stream)
        if self.step == self.start_step and self.step > 0:  # average and scores are outdated
            processes.run_on_first(
                "the first step", self.checkpoints.discard_results, self.evaluator.best.entry
            )
        wait_on_cpu(self.state)
        # Devices run programs in order: started after the step, this would wait until it ends.
        rate = self._learning_rate(self.step)
        self.step, self.position = self.step + 1, next_position
        if not self._evaluation_is_due():  # it can reach training.patience
            self.stop.start_agreement(stream.ready, bool(self._reached_limit()))
        self.state, metrics = self._train_step(self.state, batch)
        if processes.count() > 1:  # the next program may be one of `agreed_status`
            wait_on_cpu(self.state)
        self._finish_step()
        self._running = self.step, {**metrics, "learning_rate": rate}, position

    def _finish_step(self) -> None:
        """Wait for the end of the last step that is not reported, and report it."""
        if self._running is not None:
            self._progress.report(*self._running)
            self._running = None

    def _pair_locations(self, position: DataPosition) -> list[str]:
        """The places of the pairs of a batch in the corpus, such as train.de:777."""
        return self.data.train.locate(self.batches.pair_indices(position))

    def _evaluation_is_due(self) -> bool:
        return self.step % self.config.training.eval_every == 0

    def _evaluate_if_due(self) -> bool:
        """Evaluate every training.eval_every steps, once per step; returns whether a signal has
        interrupted the evaluation. The resumed run repeats it."""
        if not self._evaluation_is_due():
            return False
        self._finish_step()
        self._finish_save()
        try:
            self._evaluate()
        except Stopped:
            return True
        self._progress.restart()
        return False

    @property
    def recorded_steps(self) -> dict[str, int]:
        """For each kind of entry of metrics.jsonl the last step whose entry is not recorded again:
        an evaluation that was interrupted is repeated, and so is that of the average unless the run
        is complete."""
        complete, evaluated = self.checkpoints.complete, self.evaluator.best.evaluated_step
        return {
            "train": self.step,
            "valid": self.step if complete else evaluated,
            "average": self.step if complete else self.step - 1,
        }

    def _evaluate(self) -> None:
        """Evaluate the parameters of this step, unless they have been evaluated."""
        if self.evaluator.best.evaluated_step < self.step:
            params = local_copy(self.state.eval_params)
            self.evaluator.evaluate(self.step, self.step, params)

    def _save_if_due(self) -> None:
        """Save every training.checkpoint_every steps, except at the end."""
        training = self.config.training
        if self.step % training.checkpoint_every == 0 and self.step < training.num_steps:
            self._finish_step()
            self._finish_save()
            self._start_save()

    def _save_last_step(self) -> None:
        """Wait for the end of the last save; save the last step too."""
        self._finish_save()
        if self.saved_step < self.step:
            self._start_save()
            processes.run_on_first("the checkpoint", self.checkpoints.wait)

    def _finish_save(self) -> None:
        """Wait for the end of the last save.

        If it failed, training continues: the next save may succeed.
        """
        try:
            processes.run_on_first("the checkpoint", self.checkpoints.wait)
        except UserError as error:
            if error.code != OUTPUT:
                raise
            self.evaluator.best.undo(self.saved_step)  # every evaluated step is saved
            self.saved_step = -1
            self.run.log(f"warning: {error}; training continues without this checkpoint")

    def _start_save(self) -> None:
        stored = {
            **self.position._asdict(),
            **self.evaluator.best.to_json(),
            "seconds": self.stopwatch.seconds,
            "files": self.data.files,
            "eval_sentences": self.config.training.eval_sentences,
        }
        state = local_copy(self.state)
        processes.run_on_first("the state", self._save, state, stored)
        self.saved_step = self.step

    def _save(self, state: TrainState, stored: dict[str, Any]) -> None:
        self.run.check_replica()
        self.checkpoints.start_save(state, stored)

    def _complete(self) -> None:
        """Evaluate the last step, average the last checkpoints, evaluate and save the average.

        With training.keep=1 the average is the last step, which is not evaluated again. The last
        checkpoint is written before, so it stores the best score without these evaluations: with a
        larger limit, training continues as if it had not ended.
        """
        self.run.log(f"training ends at step {self.step}: {self._reached_limit()}")
        self._evaluate()
        self.run.share_files("the last checkpoints")
        average = self.checkpoints.average()
        if self.config.training.keep > 1:
            params = place_params(average, self.config.training.model_parallel)
            self.evaluator.evaluate("average", self.step, params)
        best = self.evaluator.best.entry
        processes.run_on_first("the average", self.checkpoints.save_average, average, best)


def raise_if_stopped(status: Status) -> None:
    if status.signal:
        raise Stopped(status.signal, agreed=True)
