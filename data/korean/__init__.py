"""The built-in Korean-English corpus, made from a grammar."""
