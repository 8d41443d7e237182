"""Fields of config.json and generation_config.json of the BART and T5 families; no weights."""

import json
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from seq2seq.decode import load_translator
from seq2seq.pretrained.bart import BART, MBART, PEGASUS
from seq2seq.pretrained.generation import decoding_of, unknown_settings
from seq2seq.pretrained.json_fields import JsonFields
from seq2seq.pretrained.models import FAMILIES, TRANSFORMERS_FAMILIES, load_params, open_model
from seq2seq.pretrained.t5 import UMT5
from seq2seq.pretrained.tokenizer_files import check_tokenizer_class
from seq2seq.pretrained.transformers_family import model_of, read_fields
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.scripts.convert import import_model
from tests.support.models.tiny_pretrained import (
    change_json,
    fairseq_options,
    libraries,
    t5_options,
    write_fairseq,
    write_t5,
)
from tests.support.models.tiny_tokenizers import model, write
from tests.support.tiny import write_run


@pytest.fixture(scope="module", params=["m2m_100", "t5"])
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "t5":
        write_t5(path)
    else:
        write_fairseq(path, request.param)
    return path


@pytest.fixture
def copied(directory, tmp_path):
    for file in directory.glob("*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


FIELDS = {
    "m2m_100": [
        ("activation_function", "gelu_new"), ("decoder_ffn_dim", 5), ("d_model", None),
        ("decoder_attention_heads", 4), ("vocab_size", 40), ("max_position_embeddings", 10**9),
    ],
    "t5": [
        ("feed_forward_proj", "gated-tanh"), ("feed_forward_proj", 3), ("d_kv", None),
        ("num_layers", 10**9), ("relative_attention_num_buckets", 0), ("layer_norm_epsilon", 0),
        ("decoder_start_token_id", None), ("tie_word_embeddings", "no"),
        ("dense_act_fn", "silu"), ("is_gated_act", True),
    ],
    "both": [
        ("eos_token_id", [1, 2]), ("is_encoder_decoder", False), ("pad_token_id", -1),
        ("quantization_config", {"bits": 4}),
    ],
}  # fmt: skip
SETTINGS = [
    ("do_sample", True), ("num_beam_groups", 2), ("repetition_penalty", 1.2), ("num_beams", 0),
    ("early_stopping", "sometimes"), ("early_stopping", 1), ("no_repeat_ngram_size", 1),
    ("bad_words_ids", [[3, 4]]), ("forced_bos_token_id", 10**6), ("forced_eos_token_id", 0),
    ("suppress_tokens", [1, 2]), ("suppress_tokens", [-1]), ("begin_suppress_tokens", 4),
    ("length_penalty", -1.0), ("max_length", 1), ("min_length", -1),
    ("num_beams", True),
    ("diversity_penalty", 0.5), ("penalty_alpha", 0.6), ("encoder_repetition_penalty", 1.2),
    ("encoder_no_repeat_ngram_size", 3), ("guidance_scale", 2.0),
    ("force_words_ids", [[4]]), ("constraints", [[4]]), ("sequence_bias", [[[4], 1.0]]),
    ("exponential_decay_length_penalty", [5, 1.1]), ("stop_strings", ["."]),
    ("watermarking_config", {"bias": 2.0}), ("token_healing", True),
]  # fmt: skip


def test_an_unsupported_field_is_refused_by_name(copied):
    open_model(copied, "best")
    config, generation = copied / "config.json", copied / "generation_config.json"
    kind = json.loads(config.read_text())["model_type"]
    original = config.read_bytes()
    cases = [(config, *case) for case in (*FIELDS[kind], *FIELDS["both"])]
    for path, field, value in cases + [(generation, *case) for case in SETTINGS]:
        config.write_bytes(original)
        generation.unlink(missing_ok=True)
        change_json(path, **{field: value})
        message = "expected at most vocab_size=40" if field == "vocab_size" else field
        with pytest.raises(UserError, match=message) as caught:
            open_model(copied, "best")
        assert caught.value.code == CHECKPOINT, field
    config.write_bytes(original)
    generation.unlink(missing_ok=True)
    (copied / "tokenizer_config.json").write_text('{"tokenizer_class": "SMALL100Tokenizer"}')
    refused = pytest.raises(UserError, match="tokenizer_class='SMALL100Tokenizer' is not supported")
    with refused:
        open_model(copied, "best")
    change_json(config, tokenizer_class="SMALL100Tokenizer")
    for stated in ({}, {"tokenizer_class": None}):  # config.json names the class
        write(copied, tokenizer_config__json=stated)
        with refused:
            open_model(copied, "best")


def sizes(row):
    """Fields of config.json that a file must state."""
    return (t5_options if "t5" in row.model_type else fairseq_options)(70)


def test_absent_fields_have_the_values_of_transformers(tmp_path):
    _, transformers = libraries()
    for row in TRANSFORMERS_FAMILIES:
        kind = row.architecture.removesuffix("ForConditionalGeneration")
        stated = sizes(row)
        every = getattr(transformers, f"{kind}Config")(**stated).to_dict()
        absent, present = (
            read_fields(row, write(tmp_path / row.model_type, config__json=content))
            for content in (stated, every)
        )
        assert model_of(row, absent, []) == model_of(row, present, [])
        assert absent.get("forced_eos_token_id") == present.get("forced_eos_token_id")


FIELDS_OF_TRANSFORMERS_3 = (
    "normalize_before", "normalize_embedding", "add_final_layer_norm",
    "static_position_embeddings", "add_bias_logits",
)  # fmt: skip


def test_one_value_of_each_field_of_transformers_3_is_refused(tmp_path):
    def is_read(row, field, value):
        try:
            row.config(JsonFields(tmp_path, row.defaults | sizes(row) | {field: value}), [])
        except UserError as error:
            assert f"{field}={value} is not supported" in str(error)
            return False
        return True

    for row in (MBART, BART, PEGASUS):
        for field in FIELDS_OF_TRANSFORMERS_3:
            assert is_read(row, field, True) != is_read(row, field, False), (row.name, field)


CLASSES = {  # of tokenizers that add the same pieces to a text
    "m2m_100": ["M2M100Tokenizer", "NllbTokenizerFast"],
    "mbart": ["MBartTokenizerFast", "MBart50Tokenizer"],
    "bart": ["BartTokenizerFast", "RobertaTokenizer"], "pegasus": ["PegasusTokenizerFast"],
    "t5": ["T5TokenizerFast", "ByT5Tokenizer"], "mt5": ["MT5TokenizerFast", "T5Tokenizer"],
    "umt5": ["T5TokenizerFast"],
}  # fmt: skip


def test_a_tokenizer_of_a_class_of_the_family_or_of_no_family_is_read(tmp_path):
    for row in TRANSFORMERS_FAMILIES:
        names = [*CLASSES[row.model_type], "PreTrainedTokenizerFast", "TokenizersBackend", None]
        for name in names:
            write(tmp_path, tokenizer_config__json={"tokenizer_class": name})
            check_tokenizer_class(tmp_path, row.tokenizer_classes)


def test_a_token_without_a_name_of_its_own_is_refused(directory):
    """Options list pieces by name: another token would be forced or suppressed."""
    pieces = ["a", "a", "b c"]
    names = {piece: i for i, piece in reversed([*enumerate(pieces)])}
    target = SimpleNamespace(size=3, piece=pieces.__getitem__, id_of=names.get)
    config = open_model(directory, "best")[0].model
    for token in (1, 2):
        for field, value in (("forced_bos_token_id", token), ("bad_words_ids", [[token]])):
            fields = JsonFields(directory, {field: value})
            with pytest.raises(UserError, match=f"{field}.* expected ids of pieces"):
                decoding_of(fields, replace(config, pad_id=0, end_id=9), target)
    nothing = JsonFields(directory, {})
    for pad, suppress in ((0, "a"), (1, "")):
        model = replace(config, pad_id=pad, end_id=9)
        assert decoding_of(nothing, model, target).suppress == suppress


def test_generation_settings_are_read_from_one_file_only(copied):
    config, generation = copied / "config.json", copied / "generation_config.json"
    end = open_model(copied, "best")[0].model.end_id
    settings = {
        "num_beams": 3, "max_length": 9, "min_length": 4, "length_penalty": 2.0,
        "early_stopping": True, "no_repeat_ngram_size": 3, "bad_words_ids": [[5], [10**6], [end]],
        "forced_eos_token_id": end, "renormalize_logits": True, "suppress_tokens": [6, 5, 10**6],
        "begin_suppress_tokens": [7, end, 10**6],
    }  # fmt: skip
    change_json(config, **settings)
    tokenizer = open_model(copied, "best")[1][1]
    for _ in range(2):
        decoding = open_model(copied, "best")[0].decoding
        assert (decoding.beam_size, decoding.alpha, decoding.power_penalty) == (3, 2.0, True)
        assert (decoding.max_length, decoding.max_extra_length, decoding.min_length) == (8, 8, 4)
        assert (decoding.stop, decoding.no_repeat_ngram) == ("now", 3)
        assert decoding.forced_end and decoding.renormalize
        pieces = [tokenizer.piece(i) for i in (5, 6, 7, end)]
        assert sorted(decoding.suppress.split()) == sorted([*pieces[:2], "<pad>"])
        assert decoding.suppress_first.split() == pieces[2:]
        change_json(generation, **settings)
        change_json(config, num_beams=7, no_repeat_ngram_size=5)
    generation.write_text(json.dumps({"num_beams": 2, "eos_token_id": [end], "max_length": None}))
    decoding = open_model(copied, "best")[0].decoding
    assert (decoding.beam_size, decoding.max_length, decoding.min_length) == (2, 20, 0)
    assert (decoding.stop, decoding.forced_end, decoding.no_repeat_ngram) == ("full", False, 0)
    generation.write_text(json.dumps({"early_stopping": "never", "min_new_tokens": 3}))
    decoding = open_model(copied, "best")[0].decoding
    assert (decoding.stop, decoding.min_length) == ("bound", 4)
    generation.write_text(json.dumps({"min_length": 30}))
    assert open_model(copied, "best")[0].decoding.min_length == 20


def test_the_settings_of_transformers_have_a_meaning_or_are_named(tmp_path):
    """A new field of transformers fails this test: give it one, or list it here."""
    _, transformers = libraries()
    stated = transformers.GenerationConfig().to_dict()
    write(tmp_path, generation_config__json=dict.fromkeys(stated, "x"))
    (line,) = unknown_settings(tmp_path)
    names = re.findall(r"(\w+)='x'", line)
    others = {"max_time", "dola_layers", "use_mtp", "speculation_type", "assistant_ensemble_weight"}
    assert set(names) <= others


def test_a_forced_language_is_the_target_language(tmp_path):
    write_fairseq(tmp_path, "m2m_100")
    write(tmp_path, vocab__json={})  # of M2M-100's tokenizer, which this directory does not name
    change_json(tmp_path / "generation_config.json", forced_bos_token_id=61)
    config, (tokenizer, _) = open_model(tmp_path, "best")
    data = config.data
    assert config.model.layer_norm_epsilon == 1e-5  # other values hardly change random models
    assert (data.source_begin, data.target_begin) == ("{source}", "{target}")
    assert tokenizer.languages[data.target_language] == 61 and not config.decoding.forced_prefix
    assert data.source_length == config.model.max_length == 40
    change_json(tmp_path / "tokenizer_config.json", legacy_behaviour=True)
    data = open_model(tmp_path, "best")[0].data
    assert (data.source_begin, data.source_end) == ("", "{source}")


def test_mbart_starts_with_the_target_language(tmp_path):
    write_fairseq(tmp_path, "mbart")
    for start, language in ((None, ""), (62, "eng_Latn")):
        change_json(tmp_path / "config.json", decoder_start_token_id=start)
        config, _ = open_model(tmp_path, "best")
        assert (config.data.source_end, config.data.target_start) == ("{source}", "{target}")
        assert config.data.target_language == language and config.decoding.forced_end
    change_json(
        tmp_path / "generation_config.json", decoder_start_token_id=63, forced_bos_token_id=61
    )
    config, (tokenizer, _) = open_model(tmp_path, "best")
    assert config.data.target_language == "kor_Hang"  # of the file that a search uses
    assert config.decoding.forced_prefix == tokenizer.piece(61)  # the second token of a target
    change_json(tmp_path / "config.json", normalize_before=False)
    with pytest.raises(UserError, match="normalize_before=False is not supported: expected True"):
        open_model(tmp_path, "best")


def test_bart_has_its_begin_token_in_targets_if_it_is_forced(tmp_path):
    pytest.importorskip("tokenizers")
    write_fairseq(tmp_path, "bart")
    for fields, begin, prefix in (
        ({}, "", ""),
        ({"forced_bos_token_id": 4}, "", "a"),
        ({"force_bos_token_to_be_generated": True}, "<s>", ""),
    ):
        change_json(tmp_path / "config.json", **fields)
        config, _ = open_model(tmp_path, "best")
        assert (config.data.source_begin, config.data.target_begin) == ("<s>", begin)
        assert config.decoding.forced_prefix == prefix and config.decoding.forced_end


def test_logits_are_scaled_as_both_fields_say(tmp_path):
    write_t5(tmp_path)
    assert open_model(tmp_path, "best")[0].model.layer_norm_epsilon == 1e-6
    for fields, scaled in (
        ({}, True), ({"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True),
        ({"model_type": "mt5", "feed_forward_proj": "relu"}, False),
    ):  # fmt: skip
        change_json(tmp_path / "config.json", **fields)
        assert open_model(tmp_path, "best")[0].model.scale_logits == scaled


def test_the_logits_of_umt5_are_scaled_only_without_an_output_matrix(tmp_path):
    """transformers 5 writes tie_word_embeddings=true for a model that has one."""
    for stated, names, scaled in (
        ({}, [], True), ({}, ["lm_head.weight"], False),
        ({"tie_word_embeddings": False}, ["lm_head.weight"], False),
        ({"scale_decoder_outputs": True}, ["lm_head.weight"], True),
    ):  # fmt: skip
        fields = JsonFields(tmp_path, UMT5.defaults | t5_options(70) | stated)
        assert UMT5.config(fields, names).scale_logits == scaled


def test_the_target_language_of_madlad_is_a_tag_before_the_source(tmp_path):
    write_t5(tmp_path)
    assert open_model(tmp_path, "best")[0].data.source_begin == ""
    size = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    change_json(  # a special token of a fine-tuned model, which is no tag
        tmp_path / "tokenizer_config.json",
        added_tokens_decoder={str(size - 1): {"content": "QUERY:", "special": True}},
    )
    assert open_model(tmp_path, "best")[0].data.source_begin == ""
    tagged = model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols="<2de>,<2ko>")
    write(tmp_path, spiece__model=tagged, tokenizer_config__json={"extra_ids": 0})
    config, (tokenizer, _) = open_model(tmp_path, "best")
    assert config.data.source_begin == "{target}" and {*tokenizer.languages} == {"de", "ko"}


def test_byt5_has_the_bytes_as_its_vocabulary(tmp_path):
    write_t5(tmp_path, vocab_size=384)
    (tmp_path / "spiece.model").unlink()
    by_class = {"tokenizer_class": "ByT5Tokenizer"}
    for content in (by_class, {}, {"extra_ids": 125}, by_class | {"extra_ids": 0}):
        write(tmp_path, tokenizer_config__json=content)
        assert open_model(tmp_path, "best")[1][0].kind == "bytes"
    write(tmp_path, tokenizer_config__json=by_class | {"extra_ids": 7})
    with pytest.raises(UserError, match="extra_ids=7 is not supported: expected 0 or 125"):
        open_model(tmp_path, "best")
    write(tmp_path, tokenizer_config__json={})
    write(tmp_path, spiece__model=model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    assert open_model(tmp_path, "best")[1][0].kind != "bytes"
    write_t5(tmp_path, vocab_size=400)
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(UserError, match="spiece.model cannot be read"):
        open_model(tmp_path, "best")


@pytest.mark.parametrize("kind", ["t5gemma", "longt5", "nllb-moe", "led", "gpt2"])
def test_other_directories_of_transformers_are_refused_by_name(tmp_path, kind):
    change_json(tmp_path / "config.json", model_type=kind)
    assert sum(family.matches(tmp_path) for family in FAMILIES) == 1
    with pytest.raises(UserError, match=f"model_type='{kind}' is not supported.* t5, mt5 or umt5"):
        open_model(tmp_path, "best")


def test_a_model_beside_an_adapter_is_not_used(copied):
    """It alone would translate otherwise."""
    original = {file.name: file.read_bytes() for file in copied.iterdir()}
    fields = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 1, "lora_alpha": 1}
    for name, content, message in (
        ("adapter_config.json", fields, "base_model_name_or_path='org/base' .* download both"),
        ("adapter_model.safetensors", {}, "adapter_config.json cannot be read: No such file"),
        ("adapter_model.bin", {}, "adapter_config.json cannot be read: No such file"),
        ("adapter_config.json", [], "adapter_config.json is malformed"),
    ):
        write(copied, **original, **{name: content})
        for _ in range(2):
            for read in (open_model, load_params):
                with pytest.raises(UserError, match=message) as caught:
                    read(copied, "best")
                assert caught.value.code == CHECKPOINT
            for file in original:  # then the adapter alone
                (copied / file).unlink(missing_ok=True)
        (copied / name).unlink()


def test_a_pickle_is_never_opened_and_what_is_not_safetensors_is_named(copied):
    (copied / "model.safetensors").rename(copied / "a.bin")
    advice = "never opened.*AutoModelForSeq2SeqLM.from_pretrained"
    for name in ("optimizer.pt", "training_args.bin"):
        (copied / name).touch()
    with pytest.raises(UserError, match=f"; a.bin is not safetensors and is {advice}"):
        open_model(copied, "best")
    (copied / "a.bin").unlink()
    missing = "model.safetensors is missing: expected model.safetensors, .* or flax_model.msgpack$"
    with pytest.raises(UserError, match=missing):
        open_model(copied, "best")
    (copied / "onnx").mkdir()
    for name, message in (
        ("rust_model.ot", "is not the expected file: download model.safetensors, "),
        ("onnx/model.onnx", "is not the expected file: download model.safetensors, "),
        ("flax_model-00001-of-00002.msgpack", "is not the expected file: .* with their index"),
        ("model.fp16.safetensors", "is not the expected file: download model.safetensors, "),
        ("tf_model.h5", r"has weights of TensorFlow: .* AutoModel.*\(DIR, from_tf=True\)"),
    ):  # the later ones are named first: they can be converted
        (copied / name).touch()
        message = f"model.safetensors is missing: expected .*; {name} {message}"
        with pytest.raises(UserError, match=message):
            open_model(copied, "best")
    for start, message in (
        (b"PK\x03\x04", f"is a pickle, .*{advice}"),
        (b"\x80\x02}", f"is a pickle, .*{advice}"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer.*git lfs pull"),
        (b"\n<!DOCTYPE html>", "is an HTML page"),
    ):
        (copied / "model.safetensors").write_bytes(start)
        with pytest.raises(UserError, match=f"model.safetensors {message}"):
            open_model(copied, "best")


def test_a_run_made_of_a_directory_has_its_config_tokenizer_and_parameters(
    copied, tmp_path, capsys
):
    run = tmp_path / "a run"
    change_json(copied / "generation_config.json", max_time=5)
    import_model(copied, run)
    warning, *commands = capsys.readouterr().err.splitlines()
    assert "max_time=5 is unknown" in warning
    assert [str(run) in shlex.split(line.replace("=", " ")) for line in commands] == [True] * 2
    (config, tokenizers), (expected, originals) = (
        open_model(run, "best"),
        open_model(copied, "best"),
    )
    assert (config.model, config.decoding) == (expected.model, expected.decoding)
    assert config.data == expected.data
    assert tokenizers[0].serialized() == originals[0].serialized()
    jax.tree.map(
        np.testing.assert_array_equal, load_params(run, "best"), load_params(copied, "best")
    )


def test_the_settings_of_a_directory_and_those_that_flags_override_are_stated(tmp_path, capsys):
    write_fairseq(tmp_path / "m2m", "m2m_100")
    settings = {"num_beams": 5, "max_length": 9, "forced_bos_token_id": 62, "max_time": 5.0,
                "new": [1], "top_k": 50, "dola_layers": None}  # fmt: skip
    change_json(tmp_path / "m2m" / "generation_config.json", **settings)
    write_run(tmp_path / "run")

    def stated(directory, checkpoint="best", source="", target="", **options):
        flags = SimpleNamespace(
            workdir=str(tmp_path / directory), checkpoint=checkpoint, weights=None,
            source_pieces=False, target_pieces=False, source_language=source,
            target_language=target, source_prefix="a: ", local_dir="",
        )  # fmt: skip
        job = SimpleNamespace(flags=flags, options=options, interactive=False, resumable=False)
        assert load_translator(job, lambda: None).source_prefix == "a: "
        return capsys.readouterr().err.splitlines()

    line = (
        f"settings of {tmp_path / 'm2m'} (M2M-100 or NLLB): beam_size=5, alpha=1.0, "
        "power_penalty=True, stop='full', max_extra_length=8, max_length=8, suppress='<pad>', "
        "source_begin='{source}', target_begin='{target}', target_language='eng_Latn'"
    )
    unknown = (
        f"warning: {tmp_path / 'm2m' / 'generation_config.json'}: max_time=5.0, new=[1] is unknown "
        "and not applied; translations can differ from those of transformers"
    )
    overridden = "settings that are overridden: beam_size=1, target_language='kor_Hang'"
    assert stated("m2m", source="eng_Latn", nbest=2) == [line, unknown]
    assert stated("m2m", target="kor_Hang", beam_size=1, dtype="float32") == [
        line,
        overridden,
        unknown,
    ]
    assert stated("run", "average", beam_size=1) == []
    change_json(tmp_path / "m2m" / "config.json", prefix=" ")
    named = "the prefix ' ' of config.json is not added to sources: set source_prefix"
    assert stated("m2m", source="eng_Latn") == [line, unknown, named]
    change_json(tmp_path / "m2m" / "config.json", prefix="a: ")
    assert stated("m2m", source="eng_Latn") == [line, unknown]
