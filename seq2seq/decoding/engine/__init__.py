"""The engine: compiled searches and scoring of token ids on all devices."""
