"""Decoding: Translator, scoring, and the formats, shards and chunks of batch jobs."""
