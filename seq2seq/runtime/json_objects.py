"""JSON objects of files that may come from anywhere: malformed, or nested without end."""

import json
from typing import Any


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a text holds. ValueError if it is malformed or another value."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("expected a JSON object, got values that are nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object, got {type(content).__name__}")
    return content
