"""Training: config tree, loss, optimizer, step, checkpoints, metrics. Is handed the model."""
