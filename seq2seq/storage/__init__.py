"""The run directory: configuration, checkpoints, manifests and records."""
