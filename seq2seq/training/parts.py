"""What a training consists of, besides its state: model, optimizer, batches, evaluation, files."""

from functools import partial

import jax

from seq2seq.config.tree import Config
from seq2seq.data.batching.batches import own_rows
from seq2seq.model.kinds import make_model
from seq2seq.runtime import processes
from seq2seq.runtime.signals import StopFlag
from seq2seq.storage.checkpoints import Checkpoints
from seq2seq.storage.run import Run
from seq2seq.training.evaluate import EvaluationTranslator, Evaluator
from seq2seq.training.inputs import Data, training_batches
from seq2seq.training.memory_check import check_state
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_eval_step
from seq2seq.training.step import init_state


class TrainingParts:
    """The parts of a training, from which a state is made or restored; a Trainer then runs them."""

    def __init__(
        self,
        config: Config,
        run: Run,
        data: Data,
        translator: EvaluationTranslator,
        stop: StopFlag,
    ):
        """Raises UserError(CONFIGURATION) if the state does not fit into memory."""
        training = config.training
        self.config, self.run, self.data, self.stop = config, run, data, stop
        self.translator = translator
        self.model = make_model(config.model)
        self.optimizer = make_optimizer(training, config.model.d_model, config.model.weights_dtype)
        parts = jax.device_count() * training.accumulate
        rows = own_rows(config.rows_per_batch, parts, processes.index(), processes.count())
        self.batches = training_batches(config, data, rows)
        eval_step = stop.polled(pmap_eval_step(self.model, training))
        self.evaluator = Evaluator(config, run, data.valid, eval_step, translator)
        self.checkpoints = Checkpoints(
            run.path, training.keep, training.checkpoint_every, run.log, run.replica
        )
        self.fresh_state = partial(init_state, self.model, self.optimizer, training)
        check_state(jax.eval_shape(self.fresh_state, None), config)
