"""Copies of runs in object storage: upload, download, a model that is only read."""
