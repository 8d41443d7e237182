"""The run directory: checkpoints, manifests, records and copies in object storage."""
