"""Durations as text, for logs and progress lines."""

import math


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds, rounded up: 3723 → "1:02:03"."""
    minutes, rest = divmod(math.ceil(round(seconds, 3)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
