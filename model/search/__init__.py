"""Beam search, sampling, rules and scoring; independent of the network but for `translate`."""
