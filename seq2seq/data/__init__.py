"""Corpora, tokenizers and packed batches: from text to NumPy arrays, independent of models."""
