"""What a training consists of, besides its state: model, optimizer, batches, evaluation, files."""

from functools import partial

import jax

from seq2seq.config.model_parallel import check_model_parallel
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
from seq2seq.training.parallel import parallel_eval_step
from seq2seq.training.step import init_state, state_shapes


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
        check_model_parallel(
            "training.model_parallel",
            training.model_parallel,
            config.model,
            jax.local_device_count(),
        )
        self.config, self.run, self.data, self.stop = config, run, data, stop
        self.translator = translator
        self.model = make_model(config.model)
        self.optimizer = make_optimizer(training, config.model.d_model, config.model.weights_dtype)
        parts = jax.device_count() // training.model_parallel * training.accumulate
        rows = own_rows(config.rows_per_batch, parts, processes.index(), processes.count())
        self.batches = training_batches(config, data, rows)
        eval_step = stop.polled(parallel_eval_step(self.model, training))
        self.evaluator = Evaluator(config, run, data.valid, eval_step, translator)
        self.checkpoints = Checkpoints(
            run.path, training.keep, training.checkpoint_every, run.log, run.replica
        )
        self.fresh_state = partial(init_state, self.model, self.optimizer, training)
        self.state_shapes = state_shapes(self.model, self.optimizer, training)
        check_state(self.state_shapes, config)
