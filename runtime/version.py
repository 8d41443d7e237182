"""The version of this program, as in pyproject.toml."""

__version__ = "0.1.0"
