"""The list of config fields, and the fields that are suggested for an unknown name."""

import re
import shlex
from dataclasses import fields

import pytest
from absl import flags
from ml_collections import config_flags

from seq2seq.config.help import OTHER_NAMES, closest_fields, field_list
from seq2seq.config.tree import Config
from tests.test_configs import NAMES, config_of

FIELDS = {
    f"{part.name}.{field.name}": field for part in fields(Config) for field in fields(part.type)
}


@pytest.mark.parametrize("name", NAMES)
def test_the_listed_flags_set_every_field_to_its_value(name):
    """The lines are flags. Applied to another config, they produce the listed one."""
    config = config_of(name)
    config.data.corpus, config.decoding.suppress = "2*tsv:it's.tsv + tsv:$B", "a b"
    lines = field_list(config).splitlines()
    arguments = [shlex.split(line)[0] for line in lines if line.startswith("  --")]
    assert [argument.split("=")[0].removeprefix("--config.") for argument in arguments] == list(
        FIELDS
    )
    changed = Config()
    changed.data.reverse = changed.model.output_bias = True
    argv, values = ["train.py", *arguments], flags.FlagValues()
    config_flags.DEFINE_config_dataclass("config", changed, flag_values=values, sys_argv=argv)
    values(argv)
    assert values.config == config


def test_each_field_is_listed_with_type_unit_rules_and_help():
    lines = field_list(Config()).splitlines()
    assert [line for line in lines if line.startswith("config.")] == [
        f"config.{part.name}" for part in fields(Config)
    ]
    assert max(map(len, lines)) <= 100
    entries = re.split(r"^  --config\.", "\n".join(lines), flags=re.MULTILINE)[1:]
    for entry, (name, field) in zip(entries, FIELDS.items(), strict=True):
        first, facts, *rest = (line.strip() for line in entry.splitlines())
        assert first.startswith(f"{name}=")
        assert facts.split(", ")[0] == field.type.__name__, name
        assert field.metadata["unit"] in facts
        assert " ".join(rest).startswith(field.metadata["help"])
    log_every = next(entry for entry in entries if entry.startswith("training.log_every"))
    assert "int, steps, at least 1" in log_every
    norm = next(entry for entry in entries if entry.startswith("model.norm"))
    assert "str, one of post, pre" in norm
    for name, facts in (
        ("model.num_layers", "int, layers, at least 1"),
        ("model.dropout", "float, probability, at least 0, below 1"),
        ("model.layer_norm_epsilon", "float, above 0"),
    ):
        (entry,) = (entry for entry in entries if entry.startswith(f"{name}="))
        assert facts in entry.splitlines()[1]


def test_every_number_of_something_has_a_unit():
    numbers = {
        name
        for name, field in FIELDS.items()
        if field.type is int and not name.endswith(("_id", "seed"))
    }
    assert {name for name in numbers if not FIELDS[name].metadata["unit"]} == set()


# Names that users of other toolkits try, and the field that they mean.
MEANT = {
    "batch_tokens": "training.tokens_per_batch",
    "batch_size": "training.tokens_per_batch",
    "max_tokens": "training.tokens_per_batch",
    "tokens_per_bacth": "training.tokens_per_batch",
    "lr": "training.learning_rate",
    "epochs": "training.max_epochs",
    "num_train_epochs": "training.max_epochs",
    "spm_model": "data.vocab",
    "lerning_rate": "training.learning_rate",
    "max_steps": "training.num_steps",
    "max_update": "training.num_steps",
    "steps": "training.num_steps",
    "warmup": "training.warmup_steps",
    "warmup_updates": "training.warmup_steps",
    "update_freq": "training.accumulate",
    "smoothing": "training.label_smoothing",
    "adam_beta1": "training.adam_b1",
    "early_stopping": "training.patience",
    "save_every": "training.checkpoint_every",
    "hidden_size": "model.d_model",
    "dim_model": "model.d_model",
    "intermediate_size": "model.d_ff",
    "layers": "model.num_layers",
    "decoder_layers": "model.num_decoder_layers",
    "n_heads": "model.num_heads",
    "attention_heads": "model.num_heads",
    "dropout_rate": "model.dropout",
    "tie_embeddings": "model.tied_embeddings",
    "max_source_length": "data.source_length",
    "dev": "data.valid",
    "beam": "decoding.beam_size",
    "num_beams": "decoding.beam_size",
    "length_penalty": "decoding.alpha",
    "no_repeat_ngram_size": "decoding.no_repeat_ngram",
    "forced_bos_token_id": "decoding.forced_prefix",
    "forced_eos_token_id": "decoding.forced_end",
}


@pytest.mark.parametrize("typed", MEANT)
def test_the_field_that_is_meant_is_suggested(typed):
    assert MEANT[typed] in closest_fields(typed)


def test_at_most_three_fields_are_suggested():
    """Six fields have the word in their name."""
    assert sum("length" in name for name in FIELDS) >= 6
    assert len(closest_fields("length")) == 3


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_in_another_section_or_with_a_letter_missing_is_suggested_first(name):
    part, _, field = name.partition(".")
    suggested = closest_fields(f"{part}.{field[:2]}{field[3:]}")
    if name in ("model.source_vocab_size", "model.target_vocab_size", "data.vocab_sha256"):
        assert name not in suggested  # set by training
    else:
        assert suggested[0] == name
        assert name in closest_fields(f"elsewhere.{field}")


@pytest.mark.parametrize("typed", ["xyzzy", "q", "_", ""])
def test_nothing_is_suggested_for_a_name_that_resembles_no_field(typed):
    assert closest_fields(typed) == []


def test_other_names_belong_to_fields_and_to_one_field_only():
    assert set(OTHER_NAMES) <= set(FIELDS)
    names = " ".join(OTHER_NAMES.values()).split()
    assert len(names) == len(set(names))
