"""Tokenizers and vocabularies: trained here, given by the user, of MarianMT."""
