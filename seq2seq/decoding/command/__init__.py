"""The job of the command line decode.py: formats, inputs, resumable output, progress."""
