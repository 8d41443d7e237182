"""Errors, streams, devices, processes, threads and signals, for all other packages."""
