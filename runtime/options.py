"""Fields of config classes that carry their help text, choices and bounds, and their validation."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import field, fields
from typing import Any

BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A dataclass field with its help text and the rules that `check_options` checks.

    `minimum` and `maximum` are inclusive bounds, `above` and `below` exclusive ones.
    """
    given = {
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "below": below,
    }
    rules = {name: rule for name, rule in given.items() if rule is not None}
    return field(default=default, metadata={"help": help, **rules})


def check_options(section: str, config: Any) -> None:
    """Raise ValueError for the first field of `config` with an invalid value: expected, got."""
    for one in fields(config):
        value = getattr(config, one.name)
        for expected in broken_rules(value, one.metadata):
            raise ValueError(f"{section}.{one.name} must be {expected}, got {value!r}")


def broken_rules(value: Any, rules: Any) -> Iterator[str]:
    """The rules that `value` breaks, as text. NaN breaks every bound."""
    if "choices" in rules and value not in rules["choices"]:
        yield f"one of {', '.join(filter(None, rules['choices']))}"
    for name, (words, holds) in BOUNDS.items():
        if name in rules and not holds(value, rules[name]):
            yield f"{words} {'2^31' if rules[name] == 2**31 else rules[name]}"
