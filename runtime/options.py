"""Fields of config classes with their help text, unit, choices and bounds, and their validation."""

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
    unit: str = "",
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A dataclass field with its help text, its unit and the rules that `check_options` checks.

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
    return field(default=default, metadata={"help": help, "unit": unit, **rules})


def check_options(section: str, config: Any) -> None:
    """Raise ValueError for the first field of `config` with an invalid value: expected, got."""
    for one in fields(config):
        value = getattr(config, one.name)
        for expected in broken_rules(value, one.metadata):
            raise ValueError(f"{section}.{one.name} must be {expected}, got {value!r}")


def broken_rules(value: Any, rules: Any) -> Iterator[str]:
    """The rules that `value` breaks, as text. NaN breaks every bound."""
    for name, text in rule_texts(rules).items():
        try:
            kept = (
                value in rules[name] if name == "choices" else BOUNDS[name][1](value, rules[name])
            )
        except TypeError:
            yield "a number"
            return
        if not kept:
            yield text


def rule_texts(rules: Any) -> dict[str, str]:
    """The rules of a field as text: "one of a, b", "at least 1"."""
    texts = {}
    if rules.get("choices"):
        texts["choices"] = f"one of {', '.join(filter(None, rules['choices']))}"
    for name, (words, _) in BOUNDS.items():
        if name in rules:
            texts[name] = f"{words} {'2^31' if rules[name] == 2**31 else rules[name]}"
    return texts
