"""Runs written as directories of the BART and T5 families, and read back: nothing changes."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.data.tokenizers.offset_tokenizer import OffsetTokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.model.transformer import Transformer
from seq2seq.pretrained.json_fields import JsonFields
from seq2seq.pretrained.models import (
    FAMILIES,
    TRANSFORMERS_FAMILIES,
    export_of,
    load_params,
    open_model,
)
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from seq2seq.scripts.convert import export_run, import_model
from tests.support.models.tiny_marian import SENTENCES
from tests.support.models.tiny_pretrained import (
    change_json,
    fairseq_options,
    libraries,
    loaded,
    t5_options,
    write_fairseq,
    write_pretrained,
    write_t5,
)
from tests.support.runs import run_training
from tests.support.tiny import tiny_config

GATED = {"feed_forward_proj": "gated-gelu"}
UNTIED = GATED | {"tie_word_embeddings": False}
SETTINGS = {  # of generation_config.json
    "num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "max_length": 9,
    "min_length": 4, "no_repeat_ngram_size": 3, "bad_words_ids": [[7]], "renormalize_logits": True,
    "begin_suppress_tokens": [8, 9],
}  # fmt: skip


def check_equal(directory, expected):
    """The config, the tokenizers and the parameters are those of another model, bit by bit."""
    (config, tokenizers), (other, others) = (open_model(x, "best") for x in (directory, expected))
    assert config == other
    for ours, theirs in zip(tokenizers, others, strict=True):
        assert (ours.kind, ours.serialized()) == (theirs.kind, theirs.serialized())
    jax.tree.map(
        np.testing.assert_array_equal, *(load_params(x, "best") for x in (directory, expected))
    )


@pytest.mark.parametrize("family", ["mbart", "t5"])
def test_a_written_directory_is_read_as_the_same_model(tmp_path, family):
    """With other values of all fields and settings than the defaults."""
    if family == "mbart":
        fields = {"scale_embedding": True, "activation_function": "relu", "attention_dropout": 0.2,
                  "tie_word_embeddings": False, "decoder_start_token_id": 62}  # fmt: skip
        write_fairseq(tmp_path / "first", "mbart", **fields)
        forced = {"forced_eos_token_id": 2}
    else:
        fields = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
                  "layer_norm_epsilon": 1e-4, "scale_decoder_outputs": True} | UNTIED  # fmt: skip
        write_t5(tmp_path / "first", **fields)
        forced = {"forced_bos_token_id": 9}
    change_json(tmp_path / "first" / "generation_config.json", **SETTINGS, **forced)
    export_run(tmp_path / "first", "best", tmp_path / "second")
    written = json.loads((tmp_path / "second" / "config.json").read_text())
    assert fields.items() <= written.items()
    check_equal(tmp_path / "second", tmp_path / "first")
    first, second = (load_file(tmp_path / x / "model.safetensors") for x in ("first", "second"))
    for name in first:
        if "embed_positions" in name:
            first[name][:2] = 0.0  # the rows that are never used
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def models():
    """The row and a model of each family."""
    for row in TRANSFORMERS_FAMILIES:
        t5 = "t5" in row.model_type
        fields = t5_options(70) | UNTIED if t5 else fairseq_options(70)
        names = ["lm_head.weight"] if t5 else []
        yield row, row.config(JsonFields(None, row.defaults | fields), names)


def test_a_run_is_written_as_the_family_whose_model_it_has(tmp_path):
    for row, model in models():
        # mT5 has the network of T5 v1.1.
        expected = "t5" if row.model_type == "mt5" else row.model_type
        exports = {family.model_type: family.export for family in FAMILIES if family.export}
        assert export_of(model, tmp_path) is exports[expected]
        assert export_of(model, tmp_path, row.model_type) is exports[row.model_type]
        directory = tmp_path / row.model_type
        directory.mkdir()
        change_json(directory / "config.json", model_type=row.model_type)
        assert export_of(model, directory) is exports[row.model_type]
    sizes = {"source_vocab_size": 9, "target_vocab_size": 9}
    with pytest.raises(UserError, match=r"MarianMT, the nearest .*epsilon=1e-05, got .*=1e-06$"):
        export_of(ModelConfig(**sizes), tmp_path)
    with pytest.raises(UserError, match="expected one of marian, .*, umt5, got 'gpt2'") as caught:
        export_of(ModelConfig(**sizes), tmp_path, "gpt2")
    assert caught.value.code == CONFIGURATION


CHANGES = {
    "norm": "post", "norm_function": "layer", "positions": "learned", "tied_embeddings": "two-way",
    "scale_scores": True, "feed_forward_bias": True,
    "activation": "gelu", "embedding_norm": True, "output_bias": True, "attention_bias": True,
    "scale_embeddings": True, "target_vocab_size": 71, "relative_tables": "layer",
}  # fmt: skip


def test_each_field_that_a_family_cannot_express_is_named(tmp_path):
    model = next(model for row, model in models() if row.model_type == "t5")
    for name, value in CHANGES.items():
        changed = replace(model, **{name: value})
        with pytest.raises(UserError, match=f"not supported by mT5: expected .*{name}=") as caught:
            export_of(changed, tmp_path, "mt5")
        assert caught.value.code == CHECKPOINT
    free = {
        "dtype": "mixed",
        "remat": True,
        "attention_kernels": False,
        "dropout": 0.3,
        "max_length": 7,
        "unknown_id": 9,
    }
    assert export_of(replace(model, **free), tmp_path, "mt5")


def test_settings_that_become_others_are_listed_and_the_rest_is_refused(tmp_path):
    """As after fine-tuning: the model is that of a directory, the settings are defaults."""
    write_fairseq(tmp_path / "first", "m2m_100")
    config, (tokenizer, _) = open_model(tmp_path / "first", "best")
    defaults = tiny_config("tsv:nowhere")
    data = replace(config.data, source_language="eng_Latn", target_language="kor_Hang")
    tuned = replace(config, data=data, decoding=replace(defaults.decoding, suppress="<pad>"))
    write, params = export_of(config.model, tmp_path).write, load_params(tmp_path / "first", "best")
    (tmp_path / "second").mkdir()
    lines = write(tuned, (tokenizer,) * 2, lambda: params, tmp_path / "second")
    names = [line.split(" is not supported by M2M-100")[0] for line in lines]
    assert names[:3] == [
        "data.source_language='eng_Latn'", "decoding.alpha=0.6", "decoding.power_penalty=False",
    ]  # fmt: skip
    settings = json.loads((tmp_path / "second" / "tokenizer_config.json").read_text())
    assert (settings["src_lang"], settings["tgt_lang"]) == ("eng_Latn", "kor_Hang")
    back = open_model(tmp_path / "second", "best")[0]
    assert back.data.target_language == "kor_Hang" and back.decoding.stop == "bound"
    legacy = replace(data, source_begin="", source_end="{source}")
    (tmp_path / "legacy").mkdir()
    assert write(replace(tuned, data=legacy), (tokenizer,) * 2, lambda: params, tmp_path / "legacy")
    words = ListTokenizer("words", b"a\nb")
    for tokenizers, changed, message in (
        ((words, words), data, "a vocabulary of words is not supported by NllbTokenizer"),
        ((tokenizer, words), data, "two vocabularies are not supported by M2M-100"),
        ((tokenizer,) * 2, replace(data, source_begin=""), "data.source_begin is not supported"),
    ):
        number = len([*tmp_path.iterdir()])
        (tmp_path / str(number)).mkdir()
        with pytest.raises(UserError, match=message) as caught:
            write(replace(tuned, data=changed), tokenizers, None, tmp_path / str(number))
        assert caught.value.code == CHECKPOINT


def test_a_vocabulary_that_its_files_do_not_express_is_refused(tmp_path):
    """One in which </s> is text."""
    write_t5(tmp_path / "first")
    config, (tokenizer, _) = open_model(tmp_path / "first", "best")
    other = OffsetTokenizer(tokenizer.model, 0, {"<unk>": 2})
    (tmp_path / "second").mkdir()
    with pytest.raises(UserError, match="the vocabulary is not supported by T5") as caught:
        export_of(config.model, tmp_path).write(config, (other,) * 2, None, tmp_path / "second")
    assert caught.value.code == CHECKPOINT


FAMILIES_OF_TRANSFORMERS = {
    "m2m_100": {}, "mbart": {"activation_function": "relu", "decoder_start_token_id": 62},
    "bart": {}, "pegasus": {"scale_embedding": True}, "t5": {}, "mt5": {},
    "umt5": {}, "madlad": GATED,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES_OF_TRANSFORMERS)
def test_transformers_has_the_same_logits_and_translations_with_a_written_directory(
    tmp_path, family
):
    torch, _ = libraries()

    reference = write_pretrained(tmp_path / "first", family, **FAMILIES_OF_TRANSFORMERS[family])
    settings = SETTINGS | {"bad_words_ids": [[7], [reference.config.pad_token_id]]}
    if family == "bart":
        settings["forced_bos_token_id"] = 0
    change_json(tmp_path / "first" / "generation_config.json", **settings)
    reference = loaded(tmp_path / "first")
    import_model(tmp_path / "first", tmp_path / "run")
    export_run(tmp_path / "run", "best", tmp_path / "second", "mt5" if family == "mt5" else "")
    check_equal(tmp_path / "second", tmp_path / "first")
    model = loaded(tmp_path / "second")
    assert type(model) is type(reference)
    random, size = np.random.default_rng(0), model.config.vocab_size
    source, target = (torch.tensor(random.integers(3, size, (4, n))) for n in (30, 11))
    with torch.no_grad():
        logits = [x(input_ids=source, decoder_input_ids=target).logits for x in (model, reference)]
    assert torch.equal(*logits)
    translations = [x.generate(input_ids=source) for x in (model, reference)]
    assert torch.equal(*translations)


@pytest.mark.slow
def test_a_fine_tuned_model_is_written_with_its_shared_embeddings(tmp_path):
    torch, _ = libraries()

    write_pretrained(tmp_path / "first", "t5_gated", **GATED)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(SENTENCES, SENTENCES[1:], strict=False)))
    settings = {"init_from": str(tmp_path / "first"), "num_steps": 2, "learning_rate": 0.01}
    config = tiny_config(
        f"tsv:{pairs}", f"tsv:{pairs}", data__source_length=99, data__target_length=99,
        training__tokens_per_batch=8 * 99, **{f"training__{k}": x for k, x in settings.items()},
    )  # fmt: skip
    trained = run_training(tmp_path / "run", replace(config, model=ModelConfig(dropout=0.0)))
    export_run(trained.run.path, "best", tmp_path / "second")
    params = load_params(tmp_path / "run", "best")
    jax.tree.map(np.testing.assert_array_equal, params, load_params(tmp_path / "second", "best"))
    before = load_params(tmp_path / "first", "best")["target_embedding"]["table"]
    assert np.abs(params["target_embedding"]["table"] - before).max() > 1e-3
    model = open_model(tmp_path / "run", "best")[0].model
    ids = np.random.default_rng(0).integers(3, model.target_vocab_size, (2, 12))
    with torch.no_grad():
        reference = loaded(tmp_path / "second")
        expected = reference(
            input_ids=torch.tensor(ids), decoder_input_ids=torch.tensor(ids)
        ).logits.numpy()
    ones = np.ones_like(ids, np.int32)
    logits = jax.jit(Transformer(model).apply)({"params": params}, ids, ids, ones, ones)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
