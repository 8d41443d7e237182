"""Marks for parametrised tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(fast: Iterable[Any], values: Iterable[Any]) -> list:
    """`values` as parameters; those that are not in `fast` are slow. A tuple is several values."""
    fast = list(fast)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if value in fast else pytest.mark.slow,
        )
        for value in values
    ]
