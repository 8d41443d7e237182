"""Corpora: kinds and their registry, reading, dropping of unusable pairs, held-out data."""
