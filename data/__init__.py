"""Corpora, tokenizers and packed batches: text in, NumPy arrays out. Knows nothing of models."""
