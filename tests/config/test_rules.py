"""The rules of config.data, .training and .decoding at their bounds, and defaults of the paper."""

import json
from dataclasses import fields, replace

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.config.training_config import TrainingConfig, profile_steps
from seq2seq.config.tree import Config, load_config, save_config, take_model
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError

NAN, TINY = float("nan"), 1e-6
GOOD = {
    "data": DataConfig(corpus="tsv:a", joint_vocab=False),
    "training": TrainingConfig(num_steps=20),
    "decoding": DecodingConfig(),
}

# part, field, the last valid values, the first invalid values.
BOUNDS = [
    *(
        ("training", name, (1, 2), (0, -1))
        for name in ("tokens_per_batch", "accumulate", "log_every", "keep")
    ),
    *(
        ("training", name, (1, 2, 2**31 - 1), (0, -1, 2**31))
        for name in ("num_steps", "warmup_steps")
    ),
    ("training", "eval_every", (1000, 2000), (0, -1000, 1500, 999)),
    ("training", "checkpoint_every", (1, 2500, 5000), (0, -1, 3000, 10_000)),
    *(
        ("training", name, (0, 0.0, 1, 3), (-1, -TINY, NAN))
        for name in ("learning_rate", "weight_decay", "clip_norm", "r_drop")
    ),
    *(
        ("training", name, (0, 1, 3), (-1,))
        for name in ("loss_block", "patience", "eval_sentences", "skip_nonfinite")
    ),
    ("training", "seed", (0, 1), (-1,)),
    *(
        ("training", name, (0.0, 0.5, 1 - TINY), (-TINY, 1.0, NAN))
        for name in ("label_smoothing", "adam_b1", "adam_b2", "ema_decay")
    ),
    ("training", "adam_epsilon", (TINY, 1.0), (0.0, -TINY, NAN)),
    (
        "training",
        "schedule",
        ("paper", "inverse_sqrt", "cosine", "linear", "constant"),
        ("", "step"),
    ),
    ("training", "optimizer", ("adam", "adafactor", "muon"), ("", "sgd")),
    ("training", "best_metric", ("bleu", "chrf", "loss"), ("", "nll")),
    ("training", "bleu_tokenizer", ("13a", "zh", "ja-mecab", "ko-mecab", "char"), ("", "ja")),
    (
        "training",
        "profile",
        ("", "1:1", "1:20", "20:20"),
        ("0:1", "1:21", "2:1", "1", "1:", ":1", "a:b", "1:2:3", " 1:2", "-1:2"),
    ),
    *(("data", name, (5, 100), (4, 3, -1, 2**31)) for name in ("vocab_size",)),
    ("data", "target_vocab_size", (0, 5, 100), (4, 1, -1, 2**31)),
    *(("data", name, (2, 3), (1, 0, -1)) for name in ("source_length", "target_length")),
    ("data", "max_length_ratio", (0, 1, 1.5), (0.5, 1 - TINY, -1)),
    *(
        ("data", name, ("", "<s>", "{source}", "{target}", "{"), ("{source}:", "a{target}"))
        for name in ("source_begin", "source_end", "target_begin", "target_start")
    ),
    ("data", "target_begin", ("<s> {target}",), ()),
    ("data", "target_start", (), ("<s> {target}",)),
    ("data", "corpus", ("tsv:a",), ("",)),
    ("data", "on_bad_utf8", ("error", "skip", "replace"), ("", "ignore")),
    ("data", "on_bad_line", ("error", "skip"), ("", "replace")),
    ("data", "tokenizer", ("unigram", "bpe", "words", "characters"), ("", "spaces")),
    ("data", "target_tokenizer", ("", "unigram", "bpe", "words"), ("spaces",)),
    ("decoding", "beam_size", (1, 2**16), (0, -1, 2**16 + 1)),
    *(("decoding", name, (0, 1, 2**16), (-1, 2**16 + 1)) for name in ("batch_size", "samples")),
    ("decoding", "nbest", (1, 4), (0, -1, 5)),
    *(
        ("decoding", name, (0, 1), (-1, 2**31))
        for name in (
            "max_length",
            "min_length",
            "horizon",
            "no_repeat_ngram",
            "top_k",
            "seed",
            "max_extra_length",
        )
    ),
    *(
        ("decoding", name, (0.0, 0.5, 2.0), (-TINY, NAN))
        for name in ("alpha", "max_length_ratio", "min_length_ratio")
    ),
    *(
        ("decoding", name, (TINY, 0.5, 1.0, 1e38), (0.0, -1.0, 1e39, float("inf"), NAN))
        for name in ("repetition_penalty", "temperature")
    ),
    ("decoding", "top_p", (TINY, 0.5, 1.0), (0.0, -1.0, 1 + TINY, NAN)),
    ("decoding", "dtype", ("", "float32", "mixed", "bfloat16"), ("float16",)),
]


@pytest.mark.parametrize(
    "part, field, good, bad", BOUNDS, ids=[f"{part}.{field}" for part, field, *_ in BOUNDS]
)
def test_a_field_is_accepted_within_its_bounds_and_refused_beyond_them(part, field, good, bad):
    for value in good:
        replace(GOOD[part], **{field: value}).validate()
    for value in bad:
        with pytest.raises((ValueError, UserError)) as refused:
            replace(GOOD[part], **{field: value}).validate()
        message = str(refused.value)
        assert f"{part}.{field}" in message and "\n" not in message
        assert str(value) in message


# Rules of two fields: valid and invalid changes of the whole config.


def whole(**changes):
    """A configuration with changed fields, given as part__field=value."""
    config = Config(
        model=ModelConfig(tied_embeddings="none", max_length=300),
        data=replace(GOOD["data"], source_length=300, target_length=200),
        training=replace(GOOD["training"], tokens_per_batch=200),
    )
    for name, value in changes.items():
        part, _, field = name.partition("__")
        setattr(getattr(config, part), field, value)
    return config


ACCEPTED = [
    {},
    {"data__target_length": 300, "training__tokens_per_batch": 300},
    *({"model__max_length": 299, "model__positions": name} for name in ("relative", "rotary")),
    # The limit of the model that is read is known with its vocabulary.
    {"model__max_length": 299, "training__init_from": "model"},
    {"data__joint_vocab": True, "model__tied_embeddings": "three-way"},
    {"data__joint_vocab": True, "data__target_tokenizer": "unigram"},
    {"data__joint_vocab": True, "data__target_vocab_size": DataConfig().vocab_size},
    {"training__optimizer": "adafactor", "training__weight_decay": 0.1},
    {"training__r_drop": 2.0, "model__dropout": 0.0, "model__attention_dropout": 0.1},
    {"decoding__nbest": 7, "decoding__samples": 1},
    {"decoding__samples": 1024, "decoding__mbr": "chrf"},
    {"decoding__samples": 1025},
]
REFUSED = [
    ({"model__max_length": 299}, "300"),
    (
        {
            "model__max_length": 299,
            "model__source_vocab_size": 7,
            "training__init_from": "model",
        },
        "300",
    ),
    ({"model__max_length": 299, "model__positions": "learned"}, "model.positions=learned"),
    ({"data__target_length": 301, "training__tokens_per_batch": 301}, "301"),
    ({"training__tokens_per_batch": 199}, "tokens_per_batch"),
    ({"model__tied_embeddings": "three-way"}, "joint_vocab"),
    ({"data__joint_vocab": True, "data__target_tokenizer": "bpe"}, "target_tokenizer"),
    ({"data__joint_vocab": True, "data__target_vocab_size": 7}, "target_vocab_size"),
    ({"model__dropout": 1.0}, "dropout"),
    ({"data__vocab_size": 4}, "vocab_size"),
    ({"training__keep": 0}, "keep"),
    *(
        (
            {"training__optimizer": "adafactor", f"training__{name}": 0.5},
            f"training.{name}=0.5 has no effect with training.optimizer=adafactor",
        )
        for name in ("adam_b1", "adam_b2", "adam_epsilon")
    ),
    ({"training__r_drop": 2.0, "model__dropout": 0.0}, "training.r_drop=2.0 has no effect"),
    ({"decoding__beam_size": 0}, "beam_size"),
    ({"decoding__samples": 1025, "decoding__mbr": "chrf"}, "from 2 to 1024, got 1025"),
]


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_compatible_fields_are_accepted(changes):
    whole(**changes).validate()


@pytest.mark.parametrize("changes, field", REFUSED, ids=str)
def test_incompatible_fields_are_a_user_error(changes, field):
    with pytest.raises(UserError) as refused:
        whole(**changes).validate()
    assert refused.value.code == CONFIGURATION
    assert field in str(refused.value)


def test_the_defaults_are_those_of_the_paper():
    """Sections 5.1 to 5.4 and 6.1."""
    t, d = TrainingConfig(), DecodingConfig()
    assert (t.num_steps, t.tokens_per_batch, t.warmup_steps) == (100_000, 25_000, 4000)
    assert (t.adam_b1, t.adam_b2, t.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (t.schedule, t.learning_rate, t.label_smoothing) == ("paper", 1.0, 0.1)
    assert t.optimizer == "adam"
    assert (t.weight_decay, t.ema_decay, t.r_drop) == (0.0, 0.0, 0.0)
    assert (t.loss_block, t.accumulate) == (0, 1)
    assert (t.patience, t.skip_nonfinite, t.deterministic) == (0, 0, False)
    assert (t.freeze, t.profile, t.init_from, t.best_metric, t.seed) == ("", "", "", "bleu", 0)
    assert (d.beam_size, d.alpha, d.max_extra_length, d.nbest) == (4, 0.6, 50, 1)
    for part in (t, d, ModelConfig()):
        part.validate()


def test_decoding_options_are_off_by_default():
    d = DecodingConfig()
    assert not any(
        (
            d.power_penalty,
            d.horizon,
            d.max_length,
            d.max_length_ratio,
            d.min_length,
            d.min_length_ratio,
            d.no_repeat_ngram,
            d.suppress,
            d.suppress_first,
            d.forbid_sequences,
            d.forced_prefix,
            d.forced_end,
            d.renormalize,
            d.samples,
            d.top_k,
            d.seed,
            d.dtype,
        )
    )
    assert d.repetition_penalty == d.temperature == d.top_p == 1.0


def test_dropout_rates_are_not_taken_from_the_model_that_training_starts_from():
    rates = {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4}
    for config_options, model_options in ((rates, {}), ({}, rates)):
        config, model = Config(model=ModelConfig(**config_options)), ModelConfig(**model_options)
        taken, different = take_model(config, Config(model=model))
        assert taken.model == ModelConfig(**config_options) and different == []


def test_the_pieces_around_texts_are_taken_from_the_model_that_training_starts_from():
    trained = Config(data=DataConfig(source_begin="{source}", source_language="a"))
    taken, different = take_model(Config(), trained)
    assert (taken.data.source_begin, taken.data.source_language, different) == ("{source}", "", [])
    assert taken.data.languages_used() == ["source"]
    config = Config(data=DataConfig(source_begin="{target}"))
    assert take_model(config, trained)[0].data.languages_used() == ["target"]


def test_the_default_data_is_the_built_in_corpus_with_one_vocabulary():
    d = DataConfig()
    assert (d.corpus, d.valid, d.test, d.data_dir) == ("builtin:korean_english", "", "", "")
    assert (d.tokenizer, d.target_tokenizer, d.joint_vocab) == ("unigram", "", True)
    assert (d.target_vocab_size, d.max_length_ratio) == (0, 0.0)
    assert (d.reverse, d.on_bad_utf8, d.vocab_sha256) == (False, "error", "")
    assert (d.on_bad_line, d.deduplicate) == ("error", False)
    assert not (d.source_begin or d.source_end or d.target_begin or d.target_start)
    d.validate()


@pytest.mark.parametrize("part", fields(Config), ids=lambda part: part.name)
def test_every_field_has_a_help_text(part):
    for field in fields(part.type):
        help = field.metadata["help"]
        assert isinstance(help, str) and len(help) > 5, field.name


@pytest.mark.parametrize(
    "tokens, accumulate, rows, at_a_time",
    [(200, 1, 1, 1), (399, 1, 1, 1), (2100, 1, 10, 10), (2100, 3, 10, 4)],
)
def test_rows_of_a_batch_are_its_tokens_over_the_length(tokens, accumulate, rows, at_a_time):
    config = whole(
        training__tokens_per_batch=tokens, data__target_length=200, training__accumulate=accumulate
    )
    assert (config.rows_per_batch, config.rows_at_a_time) == (rows, at_a_time)


def test_special_ids_are_those_of_the_model():
    config = whole(model__pad_id=7, model__start_id=8, model__end_id=9, model__unknown_id=10)
    assert config.special._asdict() == {"pad": 7, "start": 8, "end": 9, "unknown": 10}


@pytest.mark.parametrize("samples, nbest, hypotheses", [(0, 3, 3), (5, 1, 5), (0, 1, 1)])
def test_the_number_of_hypotheses_is_samples_or_nbest(samples, nbest, hypotheses):
    assert DecodingConfig(samples=samples, nbest=nbest).hypotheses == hypotheses


def test_the_steps_of_a_trace_are_its_first_and_last():
    assert profile_steps("") == (0, 0)
    assert profile_steps("7:12") == (7, 12)


def test_a_saved_config_is_loaded_unchanged(tmp_path):
    config = whole(training__seed=7, decoding__suppress="a b", model__num_layers=2)
    save_config(config, tmp_path / "config.json")
    assert load_config(tmp_path / "config.json") == config
    assert json.loads((tmp_path / "config.json").read_text())["training"]["seed"] == 7


@pytest.mark.parametrize("text", [
    None, "", "{", "[]", "7", '{"model": 7}', "[" * 100_000, '{"validate": {}}', '{"other": {}}',
    '{"model": {"validate": 1}}', '{"model": {"d_ff": "7"}}', '{"decoding": {"beam_size": 1e9}}',
    '{"model": {"num_layers": 1000000000}}', '{"decoding": {"beam_size": 1000000000}}',
    '{"model": {"max_length": 1000000, "d_model": 4096}}',
])  # fmt: skip
def test_a_file_that_is_not_the_config_of_a_run_is_refused(text, tmp_path):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as refused:
        load_config(path)
    assert refused.value.code == CHECKPOINT and str(tmp_path) in str(refused.value)
