"""ModelConfig: the paper's defaults, and errors for models that cannot be built."""

from dataclasses import fields, replace

import pytest

from seq2seq.model.config import CHOICES, ModelConfig
from seq2seq.model.kinds import MODEL_KINDS
from seq2seq.model.position_rules import POSITION_RULES
from seq2seq.model.positions import POSITIONS, DistanceBias

GOOD = ModelConfig(source_vocab_size=37, target_vocab_size=37, d_model=30, num_heads=3)

LARGEST = dict.fromkeys(["source_vocab_size", "target_vocab_size"], 2**24)
LARGEST |= dict.fromkeys(["num_layers", "num_decoder_layers"], 1000)
LARGEST |= {"d_model": 2**18, "d_ff": 2**18, "max_length": 2**20}
TABLE = {"d_model": 512, "num_heads": 8, "max_length": 2**19}  # of the largest size

# Changes to GOOD, and the parts of the message: the rule and the value.
REFUSED = [
    *(({name: "other"}, [name, *allowed, "'other'"]) for name, allowed in CHOICES.items()),
    *(
        ({name: value}, [f"{name} must be at least 1", str(value)])
        for name in ("d_model", "d_ff", "num_heads", "num_layers", "max_length")
        for value in (0, -5)
    ),
    *(
        ({name: -5}, [f"model.{name} must be at least 0", "-5"])
        for name in ("source_vocab_size", "target_vocab_size", "num_decoder_layers")
    ),
    *(
        ({name: most + 1}, [f"model.{name} must be at most {most}", str(most + 1)])
        for name, most in LARGEST.items()
    ),
    *(
        ({"positions": positions, **TABLE, "max_length": 2**20}, [positions, "at most 268435456"])
        for positions in ("sinusoidal", "learned")
    ),
    ({"d_model": 31}, ["d_model must be a multiple of num_heads", "d_model=31", "num_heads=3"]),
    ({"num_heads": 2**9, "d_k": 2**9 + 1}, ["num_heads × d_k must be at most 262144", "d_k=513"]),
    ({"d_model": 33, "positions": "rotary", "d_k": 7}, ["even head size", "7"]),
    ({"d_model": 2, "num_heads": 1, "sinusoid_layout": "fairseq"}, ["d_model of 4 or more", "2"]),
    (
        {"positions": "relative", "relative_buckets": 8, "relative_distance": 4},
        ["model.relative_distance must be above", "relative_buckets // 2", "4 and 8"],
    ),
    *(
        ({name: value}, [f"model.{name} has no effect with model.positions=sinusoidal", str(value)])
        for name, value in (
            ("relative_buckets", 16),
            ("relative_distance", 64),
            ("relative_tables", "layer"),
        )
    ),
    ({"d_model": 33, "positions": "sinusoidal"}, ["even d_model", "33"]),
    ({"d_model": 33, "positions": "rotary"}, ["even head size", "11"]),
    *(
        ({name: rate}, [f"model.{name} must be {rule}", str(rate)])
        for name in ("dropout", "attention_dropout", "activation_dropout")
        for rate, rule in ((-0.1, "at least 0"), (1.0, "below 1"), (float("nan"), "at least 0"))
    ),
    *(
        ({"layer_norm_epsilon": value}, ["model.layer_norm_epsilon must be above 0", str(value)])
        for value in (0.0, -1e-6, float("nan"))
    ),
    *(
        ({"positions": positions, "sinusoid_layout": layout}, ["model.sinusoid_layout", positions])
        for positions, layout in (("rotary", "halves"), ("none", "fairseq"))
    ),
    ({"target_vocab_size": 41}, ["three-way", "source_vocab_size=37", "target_vocab_size=41"]),
    *(
        ({name: value}, [f"model.{name} must be {rule}", str(value)])
        for name in ("pad_id", "start_id", "end_id", "unknown_id")
        for value, rule in (
            (-1, "at least 0"),
            (37, "an id of the vocabulary"),
            (101, "an id of the vocabulary"),
        )
    ),
]

ACCEPTED = [
    {},
    {"source_vocab_size": 0, "target_vocab_size": 0, "unknown_id": 101},  # sizes of the vocabulary
    {"target_vocab_size": 41, "tied_embeddings": "two-way"},
    {"target_vocab_size": 41, "tied_embeddings": "none"},
    {"tied_embeddings": "inputs"},
    {"num_decoder_layers": 1},
    LARGEST | {"num_heads": 2, "positions": "none"},
    TABLE,
    TABLE | {"max_length": 2**20, "positions": "rotary"},
    {"d_model": 33, "positions": "none"},
    {"d_model": 33, "positions": "learned"},
    {"dropout": 0.0, "attention_dropout": 0.999, "activation_dropout": 0.999},
    {"start_id": 0},  # in Marian the start token is the padding
    *({"kind": kind, "d_model": 32, "num_heads": 8} for kind in CHOICES["kind"]),
    *(
        {name: choice, "positions": "relative"} if name == "relative_tables" else {name: choice}
        for name, allowed in CHOICES.items()
        if name != "kind"
        for choice in allowed
    ),
    {"d_model": 32, "d_k": 7},
    {"positions": "relative", "relative_buckets": 9, "relative_distance": 5},
]


@pytest.mark.parametrize("change, parts", REFUSED, ids=lambda x: str(x) if type(x) is dict else "")
def test_a_model_that_cannot_be_built_is_an_error_with_the_rule_and_the_value(change, parts):
    with pytest.raises(ValueError) as error:
        replace(GOOD, **change).validate()
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ACCEPTED, ids=str)
def test_a_model_that_can_be_built_is_valid(change):
    replace(GOOD, **change).validate()


def test_the_defaults_are_the_paper_s_base_model():
    c = ModelConfig()
    c.validate()
    assert c.kind == "transformer"
    assert (c.d_model, c.d_ff, c.num_heads, c.head_size) == (512, 2048, 8, 64)
    assert (c.num_layers, c.decoder_layers, c.dropout) == (6, 6, 0.1)
    assert (c.norm, c.positions, c.sinusoid_layout) == ("post", "sinusoidal", "interleaved")
    assert (c.activation, c.tied_embeddings, c.scale_embeddings) == ("relu", "three-way", True)
    assert c.attention_dropout == c.activation_dropout == 0.0
    assert not c.attention_bias and not c.output_bias and c.feed_forward_bias and c.scale_scores
    assert (c.norm_function, c.d_k) == ("layer", 0)
    assert not c.gated_feed_forward and not c.embedding_norm and not c.scale_logits


def test_every_kind_of_model_has_a_module_and_every_kind_of_positions_a_place():
    assert set(MODEL_KINDS) == set(CHOICES["kind"])
    assert tuple(POSITIONS) == tuple(POSITION_RULES) == CHOICES["positions"]
    limited = {kind for kind in POSITIONS if replace(GOOD, positions=kind).longest == 1024}
    assert limited == {"sinusoidal", "learned"}
    biased = {kind for kind, rules in POSITION_RULES.items() if rules.has_bias}
    assert biased == {kind for kind, of in POSITIONS.items() if issubclass(of, DistanceBias)}


def test_the_decoder_is_as_deep_as_the_encoder_by_default():
    assert replace(GOOD, num_layers=3).decoder_layers == 3
    assert replace(GOOD, num_layers=3, num_decoder_layers=1).decoder_layers == 1


def test_equal_configs_are_one_key_and_every_string_field_is_a_choice():
    assert len({GOOD, replace(GOOD), replace(GOOD, dropout=0.2)}) == 2
    assert {f.name for f in fields(ModelConfig) if f.type is str} == set(CHOICES)
