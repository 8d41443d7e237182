"""Config classes: fields are checked when they are set, and do not change once they are valid."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from seq2seq.model.options import Options, closest_names, did_you_mean, option, rule_texts


@dataclass(unsafe_hash=True)
class Oven(Options):
    section = "oven"

    degrees: int = option(180, "temperature", unit="°C", minimum=0, below=300)
    minutes: float = option(12.5, "duration", above=0)
    fan: bool = option(False, "circulate the air")
    tray: str = option("middle", "position of the tray", choices=("top", "middle"))

    def check_rules(self):
        if self.fan and self.degrees > 200:
            raise ValueError("oven.fan needs oven.degrees of at most 200")


VALUES = {
    "degrees": ([180, 0], [180.0, "180", True, None, [180]]),
    "minutes": ([1.5, 2, float("inf")], ["1.5", False, None, 1j]),
    "fan": ([True, False], [1, 0, "True", None]),
    "tray": (["top", "x"], [None, 3, b"top"]),
}
NAMES = {
    "degrees": "an integer",
    "minutes": "a number",
    "fan": "true or false",
    "tray": "a string",
}


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_type_is_refused_by_the_constructor_and_by_assignment(name):
    oven = Oven()
    right, wrong = VALUES[name]
    for value in right:
        setattr(oven, name, value)
        assert getattr(oven, name) == value == getattr(Oven(**{name: value}), name)
        assert type(getattr(oven, name)) is type(value)  # not converted
    before = copy.copy(oven)
    for value in wrong:
        for attempt in (
            lambda value=value: setattr(oven, name, value),
            lambda value=value: Oven(**{name: value}),
            lambda value=value: replace(oven, **{name: value}),
        ):
            with pytest.raises(TypeError) as refused:
                attempt()
            assert str(refused.value) == f"oven.{name} must be {NAMES[name]}, got {value!r}"
    assert oven == before


def test_an_unknown_field_is_refused_with_the_nearest_one():
    oven = Oven()
    with pytest.raises(AttributeError) as refused:
        oven.degree = 3
    assert str(refused.value) == ("unknown config field oven.degree; did you mean oven.degrees?")
    with pytest.raises(AttributeError, match=r"oven\.xyz; fields: degrees, minutes, fan, tray"):
        oven.xyz = 3
    assert not hasattr(oven, "degree") and not hasattr(oven, "xyz")


def test_a_valid_object_does_not_change_and_a_copy_does():
    oven = Oven()
    oven.degrees = 200
    before, key = copy.deepcopy(oven), hash(oven)
    oven.validate()
    for closed in (oven, copy.deepcopy(oven), copy.copy(oven), pickle.loads(pickle.dumps(oven))):
        for name, value in (("degrees", 210), ("degrees", 200), ("fan", False)):
            with pytest.raises(FrozenInstanceError, match=f"oven.{name} .* dataclasses.replace"):
                setattr(closed, name, value)
        assert closed.is_closed and closed == before and hash(closed) == key
        closed.validate()
    warmer = replace(oven, degrees=210)
    assert not warmer.is_closed and warmer != oven
    warmer.degrees = 220
    assert oven == before


@pytest.mark.parametrize(
    "values, message",
    [
        ({"degrees": -1}, "oven.degrees must be at least 0, got -1"),
        ({"degrees": 300}, "oven.degrees must be below 300, got 300"),
        ({"minutes": 0}, "oven.minutes must be above 0, got 0"),
        ({"minutes": float("nan")}, "oven.minutes must be above 0, got nan"),
        ({"tray": ""}, "oven.tray must be one of top, middle, got ''"),
        ({"fan": True, "degrees": 201}, "oven.fan needs oven.degrees of at most 200"),
        ({"fan": True, "degrees": 301}, "oven.degrees must be below 300, got 301"),
    ],
)
def test_an_invalid_object_stays_open(values, message):
    oven = Oven(**values)
    with pytest.raises(ValueError) as refused:
        oven.validate()
    assert str(refused.value) == message
    for name, value in vars(Oven()).items():
        setattr(oven, name, value)
    oven.validate()


def test_the_parts_of_an_object_are_validated_and_closed_with_it():
    @dataclass(unsafe_hash=True)
    class Kitchen(Options):
        oven: Oven
        seats: int = option(4, "chairs")

    kitchen = Kitchen(Oven())
    kitchen.oven.degrees = 400
    with pytest.raises(ValueError, match=r"oven\.degrees must be below 300"):
        kitchen.validate()
    kitchen.oven.degrees = 100
    kitchen.validate()
    with pytest.raises(FrozenInstanceError, match="^seats cannot be set to 5"):
        kitchen.seats = 5
    with pytest.raises(FrozenInstanceError):
        kitchen.oven.degrees = 4
    with pytest.raises(TypeError, match="oven must be a Oven, got 3"):
        Kitchen(3)


def test_rules_are_listed_as_text():
    bounds = option(1, "", minimum=0, maximum=2**31).metadata
    choices = option("a", "", choices=("", "a", "b")).metadata
    assert rule_texts(bounds) == {"minimum": "at least 0", "maximum": "at most 2^31"}
    assert rule_texts(choices) == {"choices": "one of a, b"}
    assert rule_texts(option(1, "").metadata) == {}


def test_the_closest_names_are_listed_best_first():
    names = ["beam_size", "batch_size", "alpha"]
    assert closest_names("beam_sze", names) == ["beam_size"]
    assert closest_names("b_size", names) == ["beam_size", "batch_size"]
    assert closest_names("xyz", names) == closest_names("", names) == []
    assert closest_names("a", []) == []
    assert closest_names("ab", ["ab1", "ab2", "ab3", "ab4"]) == ["ab1", "ab2", "ab3"]
    assert did_you_mean("b_size", names) == "did you mean beam_size or batch_size?"
    assert did_you_mean("BEAM_SIZE", names, "--{}".format) == "did you mean --beam_size?"
    assert did_you_mean("xyz", names) == ""
