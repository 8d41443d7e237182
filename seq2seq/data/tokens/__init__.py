"""Token ids of a corpus: encoding, the token store in memory or files, the corpus cache."""
