"""Training: data of a run, loss, optimizer, step, trainer, evaluation, progress."""
