"""Options: the base class of all config classes; `option` declares a field with its rules.

The config classes of the packages around the model are made of the same parts, so that every field
has help, unit and bounds in one form. They import this file, which imports the standard library
only.
"""

import difflib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar

BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}
TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
SUGGESTIONS = 3  # most names that a message suggests
CUTOFF = 0.51  # least similarity of a suggestion


def option(
    default: Any,
    help: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] | None = None,
    minimum: int | float | None = None,
    maximum: int | float | None = None,
    above: int | float | None = None,
    below: int | float | None = None,
) -> Any:
    """A dataclass field with its help text, its unit and the rules that `Options.validate` checks.

    `minimum` and `maximum` are inclusive bounds, `above` and `below` exclusive ones.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "above": above, "below": below}
    rules = {"choices": choices, **bounds}
    set_rules = {name: rule for name, rule in rules.items() if rule is not None}
    return field(default=default, metadata={"help": help, "unit": unit, **set_rules})


@dataclass(unsafe_hash=True)
class Options:
    """Base class of the config dataclasses: checked when it is set, unchangeable once it is valid.

    A config is made by its constructor and by assignments: those of a config file that builds on
    another one (`config = base.get_config()`, `config.model.num_layers = 2`), and those of
    ml_collections, which sets --config.model.num_layers=2 on the object that the file returned. So
    a new object is open. Each assignment, also that of the constructor, checks that the field
    exists and that the value has its type. `validate` checks the rules and closes the object:
    assignment raises from then on, since nothing would check the new value and the object may be a
    key of compiled programs. `dataclasses.replace` makes an open copy with other values, which is
    validated in turn.
    """

    section: ClassVar[str] = ""  # the name of this part of the whole config, for messages

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field. Raises AttributeError for an unknown one, TypeError for a wrong type, and
        FrozenInstanceError (an AttributeError) after `validate`."""
        types = {declared.name: declared.type for declared in fields(self)}
        if name not in types:
            hint = did_you_mean(name, types, self._path) or f"fields: {', '.join(types)}"
            message = f"unknown config field {self._path(name)}; {hint}"
            raise AttributeError(message, name=name, obj=self)
        if self.is_closed:
            raise FrozenInstanceError(
                f"{self._path(name)} cannot be set to {value!r}: this config is in use; make a "
                "copy with dataclasses.replace"
            )
        check_type(self._path(name), value, types[name])
        super().__setattr__(name, value)

    @property
    def is_closed(self) -> bool:
        """Whether `validate` has closed this object."""
        return "_closed" in self.__dict__

    def validate(self) -> None:
        """Check the rules of all fields and close this object and its parts.

        Raises ValueError with the first rule that is broken: expected, got.
        """
        for declared in fields(self):
            value = getattr(self, declared.name)
            if isinstance(value, Options):
                value.validate()
            for expected in broken_rules(value, declared.metadata):
                raise ValueError(f"{self._path(declared.name)} must be {expected}, got {value!r}")
        self.check_rules()
        self.__dict__["_closed"] = True

    def check_rules(self) -> None:
        """The rules that concern several fields. Raises ValueError."""

    def _path(self, name: str) -> str:
        return f"{self.section}.{name}" if self.section else name


def check_type(path: str, value: Any, expected: Any) -> None:
    """Raise TypeError if `value` does not have the type of its field. An integer is a number."""
    valid = isinstance(value, (int, float) if expected is float else expected)
    if not valid or (isinstance(value, bool) and expected is not bool):
        name = TYPE_NAMES.get(expected, f"a {expected.__name__}")
        raise TypeError(f"{path} must be {name}, got {value!r}")


def broken_rules(value: Any, rules: Mapping[str, Any]) -> Iterator[str]:
    """The rules that `value` breaks, as text. NaN breaks every bound."""
    for name, text in rule_texts(rules).items():
        if name == "choices":
            kept = value in rules[name]
        else:
            kept = BOUNDS[name][1](value, rules[name])
        if not kept:
            yield text


def rule_texts(rules: Mapping[str, Any]) -> dict[str, str]:
    """The rules of a field as text: "one of a, b", "at least 1"."""
    texts = {}
    if rules.get("choices"):
        texts["choices"] = f"one of {', '.join(filter(None, rules['choices']))}"
    for name, (words, _) in BOUNDS.items():
        if name in rules:
            texts[name] = f"{words} {'2^31' if rules[name] == 2**31 else rules[name]}"
    return texts


def closest_names(
    typed: str, names: Iterable[str], similarity: Callable[[str, str], float] | None = None
) -> list[str]:
    """The names that are about as similar to `typed` as the most similar one, best first; [] if
    none is similar.

    `similarity(typed, name)` is from 0 to about 1; by default it compares the letters.
    """
    compare = similarity or letter_similarity
    scores = {name: compare(typed, name) for name in names}
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    least = max(CUTOFF, 0.9 * max(scores.values(), default=0.0))
    return [name for name in ranked[:SUGGESTIONS] if scores[name] >= least]


def letter_similarity(typed: str, name: str) -> float:
    """From 0 to 1: the share of letters that two names have in common, in the same order."""
    return difflib.SequenceMatcher(None, typed.lower(), name.lower()).ratio()


def did_you_mean(typed: str, names: Iterable[str], path: Callable[[str], str] = str) -> str:
    """ "did you mean beam_size?", or "" if no name is similar. `path` makes a name complete."""
    closest = " or ".join(map(path, closest_names(typed, names)))
    return f"did you mean {closest}?" if closest else ""
