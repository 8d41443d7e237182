"""Export to MarianMT and back: bit-exact, and the same translations in other programs."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.data.tokenizers.marian_tokenizer import MarianTokenizer
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.vocabulary import vocabulary_sha256
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.decoding.translator import Translator
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.marian_export import (
    as_marian,
    check_vocabulary,
    export_marian,
    lost_settings,
    marian_settings,
)
from seq2seq.pretrained.models import export_of, load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.run_files import write_run
from tests.support.marks import slow_except
from tests.support.models.random_parameters import random_params
from tests.support.models.tiny_marian import SENTENCES, sentencepiece, write_marian
from tests.support.tiny import tiny_config

LINES, LIMIT = SENTENCES[:6], 11
END = 2
KINDS = {  # a run in MarianMT's own form, the paper's form, and two vocabularies of each order
    "its own": dict(sinusoid_layout="halves", attention_bias=True, output_bias=True),
    "the paper's": dict(activation="relu"),
    "a larger source": dict(tied_embeddings="two-way", output_bias=True),
    "a larger target": dict(tied_embeddings="none", scale_embeddings=False),
}


def ending_params(model: ModelConfig):
    params = random_params(model, deviation=0.4)
    if model.output_bias:
        params["output_bias"][END] += 2.0  # so that some translations end before their limit
    return params


def write_sentencepiece_run(path: Path, kind: str) -> None:
    """A run of random parameters with a SentencePiece vocabulary, or two."""
    config, ids = tiny_config("tsv:nowhere"), dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    tokenizers = [SentencePieceTokenizer("unigram", sentencepiece(SENTENCES, 90, **ids))] * 2
    if kind.startswith("a larger"):
        small = SentencePieceTokenizer("bpe", sentencepiece(SENTENCES[:3], 50, **ids))
        tokenizers[kind == "a larger source"] = small
        config.data.joint_vocab = False
    sizes = {
        f"{side}_vocab_size": tokenizer.size
        for side, tokenizer in zip(("source", "target"), tokenizers, strict=True)
    }
    fields = dict(
        d_model=26,
        d_ff=37,
        num_layers=1,
        num_decoder_layers=2,
        max_length=80,
        layer_norm_epsilon=1e-5,
        activation="silu",
        dropout=0.2,
        attention_dropout=0.3,
        activation_dropout=0.4,
    )
    config.model = replace(config.model, **(fields | sizes | KINDS[kind]))
    config.data.vocab_sha256 = vocabulary_sha256(tokenizers)
    config.decoding = DecodingConfig(
        beam_size=3,
        alpha=1.0,
        power_penalty=True,
        max_length=LIMIT,
        max_extra_length=20,
        batch_size=2,
    )
    path.mkdir()
    write_run(path, config, tuple(tokenizers), ending_params(config.model))


def exported(run: Path, directory: Path) -> Path:
    config, tokenizers = open_model(run, "best")
    directory.mkdir()
    write = export_of(config.model, run).write
    assert write is export_marian
    write(config, tokenizers, lambda: load_params(run, "best"), directory)
    return directory


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """A run and the MarianMT directory made of it."""
    path = tmp_path_factory.mktemp("export")
    write_sentencepiece_run(path / "run", request.param)
    return request.param, path / "run", exported(path / "run", path / "marian")


def leaves(tree):
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def test_export_and_import_are_bit_exact(pair, tmp_path):
    kind, run, directory = pair
    back, before = load_params(directory, "best"), load_params(run, "best")
    config, tokenizers = open_model(directory, "best")
    if kind == "its own":
        assert config.model == open_model(run, "best")[0].model
        jax.tree.map(np.testing.assert_array_equal, back, before)
    assert config.data.joint_vocab == open_model(run, "best")[0].data.joint_vocab
    # Converted parameters contain the same numbers, and another round trip changes nothing.
    bits = [
        np.sort(np.concatenate([x.view(np.int32).ravel() for x in jax.tree.leaves(tree)]))
        for tree in (back, before)
    ]
    zeros = len(bits[0]) - len(bits[1])
    np.testing.assert_array_equal(np.sort(np.append(bits[1], np.zeros(zeros, np.int32))), bits[0])
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", config, tokenizers, back)
    again = exported(tmp_path / "run", tmp_path / "again")
    for name in (
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "vocab.json",
        "tokenizer_config.json",
        "source.spm",
        "target.spm",
    ):
        assert (again / name).read_bytes() == (directory / name).read_bytes(), name


def test_import_and_export_of_a_marian_directory_are_bit_exact(tmp_path):
    write_marian(tmp_path / "marian")
    config, tokenizers = open_model(tmp_path / "marian", "best")
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", config, tokenizers, load_params(tmp_path / "marian", "best"))
    assert open_model(tmp_path / "run", "best")[0] == config
    back = exported(tmp_path / "run", tmp_path / "back")
    assert (back / "vocab.json").exists() and not (back / "target_vocab.json").exists()
    original, reexported = (
        load_file(path / "model.safetensors") for path in (tmp_path / "marian", back)
    )
    assert {name: x.tobytes() for name, x in original.items()} == {
        name: x.tobytes() for name, x in reexported.items()
    }
    assert open_model(back, "best")[0] == config


def test_a_marian_model_with_a_nonzero_start_token_is_exported_bit_exactly(tmp_path):
    """As after fine-tuning. CTranslate2 would start with zeros, so the row is moved."""
    write_marian(tmp_path / "marian")
    config, tokenizers = open_model(tmp_path / "marian", "best")
    params = load_params(tmp_path / "marian", "best")
    params["target_embedding"]["table"][-1] = 0.25
    (tmp_path / "out").mkdir()
    export_marian(config, tokenizers, lambda: params, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["model.shared.weight"].shape[0] == config.model.target_vocab_size + 1
    assert not tensors["model.shared.weight"][-1].any()
    loaded_config, back = open_model(tmp_path / "out", "best")
    assert (loaded_config, [tokenizer.vocabulary for tokenizer in back]) == (
        config,
        [tokenizer.vocabulary for tokenizer in tokenizers],
    )
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "out", "best"), params)


@pytest.mark.parametrize(
    "pair", slow_except(["its own"], ["its own", "a larger target"]), indirect=True
)
def test_translations_equal_those_of_transformers(pair):
    kind, run, directory = pair
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.MarianTokenizer.from_pretrained(directory)
    model, loaded = transformers.MarianMTModel.from_pretrained(directory, output_loading_info=True)
    assert not any(loaded.values())
    hypotheses = [translation.hypotheses[0] for translation in Translator.load(run).stream(LINES)]
    again = [translation.hypotheses[0] for translation in Translator.load(directory).stream(LINES)]
    assert [hypothesis.text for hypothesis in again] == [
        hypothesis.text for hypothesis in hypotheses
    ]
    target = open_model(run, "best")[0].model.target_vocab_size
    reference = model.eval().generate(
        **tokenizer(LINES, return_tensors="pt", padding=True),
        early_stopping="never",
        forced_eos_token_id=None,
        return_dict_in_generate=True,
        output_scores=True,
        prefix_allowed_tokens_fn=lambda _, prefix: (
            [END] if len(prefix) == LIMIT else [*range(target)]
        ),
    )
    ids = [[*row[1:], END] for row in reference.sequences.tolist()]
    pieces = open_model(run, "best")[1][1]
    assert [pieces.decode(row[: row.index(END)]) for row in ids] == [
        hypothesis.text for hypothesis in hypotheses
    ]
    np.testing.assert_allclose(
        [hypothesis.score for hypothesis in hypotheses], reference.sequences_scores, atol=1e-4
    )
    assert len({hypothesis.score for hypothesis in hypotheses}) == len(LINES)


# CTranslate2 gives both sides the source's vocabulary.
@pytest.mark.parametrize(
    "pair", slow_except(["its own"], ["its own", "the paper's"]), indirect=True
)
def test_translations_equal_those_of_ctranslate2(pair, tmp_path):
    _, run, directory = pair
    ctranslate2 = pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(directory)).convert(str(tmp_path / "marian"))
    reference = ctranslate2.Translator(str(tmp_path / "marian"), compute_type="float32")
    _, (tokenizer, _) = open_model(directory, "best")
    sources = [[tokenizer.piece(i) for i in ids] + ["</s>"] for ids in tokenizer.encode_many(LINES)]
    for beam_size, patience in ((1, 1.0), (3, 5.0)):
        results = reference.translate_batch(
            sources,
            beam_size=beam_size,
            patience=patience,
            max_decoding_length=LIMIT - 1,
            min_decoding_length=0,
            length_penalty=1.0,
            return_scores=True,
        )
        translations = Translator.load(run, beam_size=beam_size).stream(LINES)
        for translation, result in zip(translations, results, strict=True):
            ids = [tokenizer.id_of(piece) for piece in result.hypotheses[0]]
            assert translation.text == tokenizer.decode(ids)


@pytest.mark.parametrize(
    "field, value",
    [
        ("kind", "rnn"),
        ("norm", "pre"),
        ("positions", "rotary"),
        ("positions", "learned"),
        ("positions", "none"),
        ("layer_norm_epsilon", 1e-6),
        ("norm_function", "rms"),
        ("sinusoid_layout", "fairseq"),
        ("d_k", 3),
        ("activation", "gelu_tanh"),
        ("gated_feed_forward", True),
        ("scale_scores", False),
        ("embedding_norm", True),
        ("scale_logits", True),
        ("tied_embeddings", "inputs"),
    ],
)
def test_a_run_that_marian_cannot_express_is_refused_by_name(tmp_path, field, value):
    sizes = {"source_vocab_size": 9, "target_vocab_size": 9}
    model = replace(tiny_config("tsv:nowhere").model, layer_norm_epsilon=1e-5, **sizes)
    assert export_of(model, tmp_path).write is export_marian
    model = replace(model, **{field: value})
    message = rf"MarianMT: expected model.{field}=.*, got model.{field}="
    with pytest.raises(UserError, match=message) as caught:
        export_of(model, tmp_path, "marian")
    assert caught.value.code == CHECKPOINT


def test_a_vocabulary_or_template_that_marian_cannot_express_is_refused_by_name():
    words = ListTokenizer("words", b"a\nb")
    with pytest.raises(UserError, match="a vocabulary of words is not supported by MarianMT"):
        check_vocabulary(DataConfig(), (words, words))
    ids = {"</s>": 0, "<unk>": 1, "<old-pad>": 2}
    reserved = MarianTokenizer(sentencepiece(SENTENCES, 60), ids)
    with pytest.raises(UserError, match="the vocabulary has the piece '<old-pad>'"):
        check_vocabulary(DataConfig(), (reserved, reserved))
    with pytest.raises(UserError, match="data.source_begin is not supported .* got '<2de>'"):
        check_vocabulary(DataConfig(source_begin="<2de>"), ())


def test_the_export_lists_decoding_options_that_are_lost(pair, tmp_path):
    _, run, _ = pair
    config, tokenizers = open_model(run, "best")
    config = replace(config, decoding=DecodingConfig(alpha=0.6, no_repeat_ngram=1))
    lost = export_marian(config, tokenizers, lambda: load_params(run, "best"), tmp_path)
    assert [
        name
        for name in ("length penalty", "no_repeat_ngram")
        if not any(name in line for line in lost)
    ] == [] and len(lost) == 2
    back = open_model(tmp_path, "best")[0].decoding
    assert (back.alpha, back.no_repeat_ngram) == (1.0, 0)
    assert back.max_length == config.model.max_length - 1
    carried = DecodingConfig(
        alpha=0.6,
        power_penalty=True,
        beam_size=3,
        max_length=7,
        nbest=2,
        renormalize=True,
        horizon=1,
        max_extra_length=4,
        batch_size=8,
        min_length=5,
        no_repeat_ngram=3,
        forced_end=True,
    )
    pad, end = config.model.pad_id, config.model.end_id
    fields = marian_settings(carried, config.model, tokenizers[1])
    assert lost_settings(carried) == [] and fields == {
        "pad_token_id": pad,
        "eos_token_id": end,
        "decoder_start_token_id": config.model.start_id,
        "forced_eos_token_id": end,
        "bad_words_ids": [[pad]],
        "num_beams": 3,
        "length_penalty": 0.6,
        "max_length": 8,
        "renormalize_logits": True,
        "min_length": 5,
        "no_repeat_ngram_size": 3,
    }
    for stop, early_stopping in (("full", False), ("now", True), ("bound", "never")):
        several = DecodingConfig(alpha=0, stop=stop, forced_prefix="<unk> <s>")
        fields = marian_settings(several, config.model, tokenizers[1])
        assert fields["early_stopping"] is early_stopping and "forced_bos_token_id" not in fields
        assert "forced_prefix='<unk> <s>'" in lost_settings(several)[0]
        assert fields["length_penalty"] == 0
    forced = marian_settings(replace(carried, forced_prefix="<unk>"), config.model, tokenizers[1])
    assert forced["forced_bos_token_id"] == tokenizers[1].id_of("<unk>")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_an_exported_vocabulary_has_the_same_tokens_for_a_tagged_line(kind):
    """`MarianTokenizer` is compared with transformers in its own tests."""
    config = DataConfig(tokenizer=kind, vocab_size=90)
    tags = [">>deu<<", "<2kor>"]
    tokenizer, _ = train_tokenizers(config, SENTENCES, SENTENCES, tags)
    marian = as_marian(tokenizer)
    for line in SENTENCES:
        for text in (line, *(f"{tag} {line}" for tag in tags), f"{line} >>deu<<"):
            assert marian.encode(text) == tokenizer.encode(text)


def test_an_export_that_is_cast_to_half_precision_is_read(pair, tmp_path):
    from safetensors.numpy import save_file

    _, _, directory = pair
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    with np.errstate(over="ignore"):  # the bias of the row that is never predicted
        halves = {name: x.astype(np.float16) for name, x in tensors.items()}
    save_file(halves, tmp_path / "model.safetensors")
    back, original = load_params(tmp_path, "best"), load_params(directory, "best")
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x, y.astype(np.float16)), back, original
    )


def test_a_copy_without_its_start_token_is_refused(pair, tmp_path):
    """transformers does not save tables of positions."""
    from safetensors.numpy import save_file

    _, _, directory = pair
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    positions = tensors.pop("model.decoder.embed_positions.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="embed_positions"):
        load_params(tmp_path, "best")
    positions[0] += 0.5
    save_file(
        tensors | {"model.decoder.embed_positions.weight": positions},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(UserError, match="embed_positions"):
        load_params(tmp_path, "best")
    note = json.loads((directory / "config.json").read_text())["jax_transformer"]
    assert note["start_id"] == 1
