"""Decoding: translate, score and align; output formats, shards and resumable jobs."""
