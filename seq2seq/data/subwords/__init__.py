"""Subword sampling: BPE-dropout and unigram sampling."""
