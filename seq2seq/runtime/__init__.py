"""Errors, files, config options, devices, processes and signals, for all other packages."""
