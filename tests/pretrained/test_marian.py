"""MarianMT directories: logits and searches equal those of transformers."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.results import Source
from seq2seq.decoding.search_options import search_options
from seq2seq.model.transformer import Transformer
from seq2seq.pretrained.generation import STOPS
from seq2seq.pretrained.marian import load_marian, marian_config
from seq2seq.pretrained.models import open_model
from seq2seq.runtime.errors import CHECKPOINT, UserError
from tests.support.models.tiny_marian import CONFIG, SHARING, random_model, write_marian

N, LIMIT, PAD = 4, 11, CONFIG["pad_token_id"]
EACH = [*zip(SHARING, ("swish", "relu", "gelu"), strict=True)]  # each value once


def inputs(random, torch):
    """50 sources without end tokens, and the inputs of transformers for them."""
    sources = [random.integers(1, PAD, random.integers(1, 12)).tolist() for _ in range(50)]
    ids, mask = np.full((50, 12), PAD), np.zeros((50, 12), int)
    for row, source in enumerate(sources):
        ids[row, : len(source) + 1] = [*source, 0]
        mask[row, : len(source) + 1] = 1
    return sources, {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("sharing, activation", EACH)
def test_logits_equal_those_of_transformers_also_with_padding(tmp_path, sharing, activation):
    fields = SHARING[sharing] | {
        "activation_function": activation,
        "scale_embedding": activation != "relu",
    }
    torch, reference = random_model(**fields)
    reference.save_pretrained(tmp_path)
    config, _ = marian_config(tmp_path)
    assert config.tied_embeddings == sharing
    params, random = load_marian(tmp_path, config), np.random.default_rng(0)
    _, torch_inputs = inputs(random, torch)
    target = random.integers(1, PAD, (50, 7))
    with torch.no_grad():
        expected = reference(**torch_inputs, decoder_input_ids=torch.tensor(target)).logits.numpy()
    logits = jax.jit(Transformer(config).apply)(
        {"params": params},
        jnp.asarray(torch_inputs["input_ids"].numpy()),
        jnp.asarray(target),
        jnp.asarray(torch_inputs["attention_mask"].numpy()),
        jnp.ones((50, 7), int),
    )
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A random model with outputs of different lengths, and both searches of 50 sources. What its
    embeddings share changes its logits only, which the test above compares."""
    torch, reference = random_model(0.3, **SHARING["three-way"])
    reference.final_logits_bias[0, 0] += 2.0
    path = tmp_path_factory.mktemp("marian")
    reference.save_pretrained(path)
    config, _ = marian_config(path)
    params = load_marian(path, config)
    sources, torch_inputs = inputs(np.random.default_rng(3), torch)

    def ours(forced=(), **options):
        usual = dict(alpha=1.0, power_penalty=True, max_length=LIMIT, max_extra_length=LIMIT - 1)
        decoding = DecodingConfig(**(usual | options))
        search = search_options(decoding, config.end_id, {"suppress": (PAD,)})
        engine = Engine([config], decoding, search)
        engine.use(params)
        window = [Source(number, ids, forced=forced) for number, ids in enumerate(sources)]
        calls = engine.search([window])
        return {
            source.number: [(hypothesis.ids, hypothesis.score) for hypothesis in hypotheses]
            for call in calls
            for source, hypotheses in call
        }

    def hf(**options):
        """Their length counts the start token. A forced end token costs nothing in transformers, so
        it is forced here through the allowed tokens, which keeps its probability."""
        usual = dict(
            max_length=LIMIT + 1,
            forced_eos_token_id=None,
            bad_words_ids=[[PAD]],
            return_dict_in_generate=True,
            output_scores=True,
            prefix_allowed_tokens_fn=lambda _, prefix: (
                [0] if len(prefix) == LIMIT else [*range(PAD)]
            ),
        )
        generated = reference.generate(**torch_inputs, **(usual | options))
        beams = options.get("num_return_sequences", 1)
        ids = [[*row[1:], 0][: [*row[1:], 0].index(0)] for row in generated.sequences.tolist()]
        searched = options.get("num_beams", 1) > 1
        scores = generated.sequences_scores.tolist() if searched else [0.0] * 50
        hypotheses = list(zip(ids, scores, strict=True))
        return {i: hypotheses[i * beams : (i + 1) * beams] for i in range(50)}

    return ours, hf


@pytest.mark.slow
def test_greedy_ids_equal_those_of_transformers(searched):
    ours, hf = searched
    results, expected = ours(beam_size=1), hf(num_beams=1)
    assert {i: nbest[0][0] for i, nbest in results.items()} == {
        i: nbest[0][0] for i, nbest in expected.items()
    }


def test_beams_equal_those_of_transformers_without_early_stopping(searched):
    """The best hypothesis and its score. Of the others ours may be better: transformers lets a
    hypothesis end only where its end is among the best N of the 2N continuations.

    The two best scores of each source differ by more than rounding changes them, so that the
    processor does not decide which hypothesis is the best. It does decide which of two others with
    nearly equal scores stays in the beam: these are not compared.
    """
    ours, hf = searched
    results = ours(beam_size=N, nbest=N)
    expected = hf(num_beams=N, num_return_sequences=N, early_stopping="never", length_penalty=1.0)
    same = compared = 0
    for i, hypotheses in expected.items():
        assert hypotheses[0][1] - hypotheses[1][1] > 1e-4
        assert results[i][0][0] == hypotheses[0][0], f"{i}: {results[i]}, expected {hypotheses}"
        assert results[i][0][1] == pytest.approx(hypotheses[0][1], abs=1e-4)
        scores, references = ([s for _, s in nbest] for nbest in (results[i], hypotheses))
        for score, reference, better in zip(
            scores[1:], references[1:], references[:-1], strict=True
        ):
            if better - reference > 1e-4:
                assert score >= reference - 1e-5
                compared += 1
        same += [ids for ids, _ in results[i]] == [ids for ids, _ in hypotheses]
    assert same > 25 and compared > 130  # of 50 and 150
    assert len({len(nbest[0][0]) for nbest in results.values()}) > 1


@pytest.mark.slow
def test_beams_with_a_repetition_penalty_equal_those_of_transformers(searched):
    """The penalty multiplies log-probabilities there; in its greedy search, which this does not
    test, it acts on logits. Where the best hypotheses differ, ours has the higher score, for the
    reason above."""
    ours, hf = searched
    plain = ours(beam_size=N)
    results = ours(beam_size=N, repetition_penalty=1.4)
    expected = hf(
        num_beams=N,
        num_return_sequences=N,
        early_stopping="never",
        length_penalty=1.0,
        repetition_penalty=1.4,
    )
    same = [i for i, hypotheses in expected.items() if results[i][0][0] == hypotheses[0][0]]
    assert len(same) > 40
    for i, hypotheses in expected.items():
        score, reference = results[i][0][1], hypotheses[0][1]
        assert score == pytest.approx(reference, abs=1e-4) if i in same else score > reference
    assert sum(results[i][0][0] != plain[i][0][0] for i in same) > 5


SETTINGS = [  # beams, n-grams, early_stopping, with forced tokens, minimum length
    (1, 2, True, False, 0), (4, 3, True, True, 5), (5, 2, "never", True, 0),
    (8, 0, False, False, 4),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("beams, ngram, early_stopping, forced, shortest", SETTINGS)
def test_the_best_hypothesis_equals_that_of_transformers_in_its_settings(
    searched, beams, ngram, early_stopping, forced, shortest
):
    """In 50 of 50 sources, with its score. One compiled program serves all length penalties."""
    ours, hf = searched
    free = dict(forced_bos_token_id=7, forced_eos_token_id=0, prefix_allowed_tokens_fn=None)
    for alpha in (0.8, 1.0, 2.0):
        expected = hf(
            num_beams=beams, num_return_sequences=1, early_stopping=early_stopping,
            length_penalty=alpha, no_repeat_ngram_size=ngram, min_length=shortest,
            **(free if forced else {}),
        )  # fmt: skip
        results = ours(
            forced=(7,) if forced else (), forced_end=forced, beam_size=beams, alpha=alpha,
            no_repeat_ngram=ngram, min_length=shortest,
            stop=STOPS[early_stopping],
        )  # fmt: skip
        for i, ((ids, score),) in expected.items():
            best, best_score = results[i][0]
            assert list(best) == ids, (alpha, i)
            assert beams == 1 or best_score == pytest.approx(score, abs=1e-5)
        assert len({tuple(ids) for ((ids, _),) in expected.values()}) > 5


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A directory that can be opened. Tests must not change it."""
    path = tmp_path_factory.mktemp("valid")
    write_marian(path)
    open_model(path, "best")
    return path


@pytest.mark.parametrize("field, value", [
    ("normalize_before", True), ("static_position_embeddings", False), ("model_type", "led"),
    ("activation_function", "tanh"), ("decoder_ffn_dim", 41), ("tie_word_embeddings", False),
    ("attention_dropout", 1.0), ("activation_dropout", "0.1"),
    ("dropout", -0.1),
    ("d_model", None), ("encoder_layers", "2"), ("eos_token_id", [0, 1]), ("d_model", 25),
    ("do_sample", True), ("repetition_penalty", 1.2), ("bad_words_ids", [[3, 4]]),
    ("no_repeat_ngram_size", 1), ("no_repeat_ngram_size", -1), ("min_length", -1),
    ("min_new_tokens", 1.5), ("forced_bos_token_id", 0), ("forced_bos_token_id", 10**6),
    ("forced_eos_token_id", 3), ("length_penalty", -1.0), ("num_beams", 2.5),
    # Sizes that would be allocated, and values of other types than transformers writes.
    ("decoder_layers", 10**9), ("encoder_layers", 10**30), ("max_position_embeddings", 10**9),
    ("num_beams", 10**9), ("bad_words_ids", 7), ("bad_words_ids", [3]), ("bad_words_ids", [[-1]]),
    ("bad_words_ids", [["a"]]), ("activation_function", ["swish"]), ("scale_embedding", "no"),
    ("max_length", 1), ("length_penalty", 5), ("jax_transformer", {"validate": 1}),
    ("quantization_config", {"load_in_8bit": True}), ("tokenizer_class", "FooTokenizer"),
])  # fmt: skip
def test_an_unsupported_field_is_refused_by_name(valid, tmp_path: Path, field, value):
    shutil.copytree(valid, tmp_path, dirs_exist_ok=True)
    # The second one takes precedence; the last one names the class of the tokenizer.
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((tmp_path / name).read_text()) | {field: value}
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=field) as caught:
        open_model(tmp_path, "best")
    assert caught.value.code == CHECKPOINT


def test_a_list_of_one_end_token_is_that_token(tmp_path):
    write_marian(tmp_path)
    expected = open_model(tmp_path, "best")[0]
    path = tmp_path / "generation_config.json"
    content = json.loads(path.read_text()) | {"eos_token_id": [expected.model.end_id]}
    path.write_text(json.dumps(content))
    assert open_model(tmp_path, "best")[0] == expected


def test_malformed_files_are_refused_by_name(tmp_path):
    """JSON without end, text that UTF-8 cannot encode, and weights of a dtype of 8 bits."""
    write_marian(tmp_path)
    deep, vocabulary = "[" * 100_000, json.loads((tmp_path / "vocab.json").read_text())
    weights = tmp_path / "model.safetensors"
    name = "final_logits_bias"
    for file, content, reason in (
        ("config.json", f'{{"model_type": "marian", "x": {deep}', "nested too deeply"),
        ("generation_config.json", deep, "nested too deeply"),
        ("tokenizer_config.json", deep, "nested too deeply"),
        ("vocab.json", deep, "nested too deeply"),
        ("vocab.json", json.dumps(vocabulary | {"\ud800": 7}), "lone surrogate"),
        ("model.safetensors", with_8_bits(weights.read_bytes(), name), f"{name} has dtype F8_E4M3"),
    ):
        before = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError, match=reason) as refused:
            open_model(tmp_path, "best")
        assert refused.value.code == CHECKPOINT and str(tmp_path / file) in str(refused.value)
        (tmp_path / file).write_bytes(before)
    open_model(tmp_path, "best")


def with_8_bits(file: bytes, name: str) -> bytes:
    """A safetensors file with the bytes of the tensor `name` as values of float8."""
    size = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8 : 8 + size]), file[8 + size :]
    tensor = header[name]
    start, end = tensor["data_offsets"]
    tensor |= {"dtype": "F8_E4M3", "shape": [end - start]}
    changed = json.dumps(header).encode()
    return len(changed).to_bytes(8, "little") + changed + data


def test_dropout_rates_are_those_of_config_json(tmp_path):
    rates = {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4}
    write_marian(tmp_path, **rates)
    model, _ = marian_config(tmp_path)
    assert {name: getattr(model, name) for name in rates} == rates
    write_marian(tmp_path)  # the defaults of transformers
    model, _ = marian_config(tmp_path)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.0, 0.0)


@pytest.mark.parametrize(
    "field, value",
    [
        ("model_type", "marian"),
        ("normalize_before", False),
        ("normalize_embedding", False),
        ("add_final_layer_norm", False),
        ("static_position_embeddings", True),
        ("is_encoder_decoder", True),
        ("decoder_vocab_size", 9),  # without effect where the embeddings are shared
    ],
)
def test_required_fields_may_be_present_or_absent(tmp_path, field, value):
    write_marian(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    content.pop(field, None)
    for fields in (content, content | {field: value}):
        path.write_text(json.dumps(fields))
        if (
            field != "model_type" or field in fields
        ):  # which distinguishes a MarianMT directory from a run
            open_model(tmp_path, "best")


def test_vocabularies_must_have_the_ids_of_config_json(tmp_path):
    write_marian(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    size, word = len(vocabulary), next(piece for piece, i in vocabulary.items() if i == 5)

    def opened(source, target=vocabulary):
        files = {
            "vocab.json": source,
            "target_vocab.json": target,
            "tokenizer_config.json": {"separate_vocabs": True},
        }
        for name, content in files.items():
            (tmp_path / name).write_text(json.dumps(content))
        return open_model(tmp_path, "best")[0].model

    exchanged = vocabulary | {"<unk>": 5, word: 1}
    assert opened(exchanged, exchanged).unknown_id == 5
    fewer = {piece: i for piece, i in vocabulary.items() if i < size - 1}
    ends = vocabulary | {"</s>": 5, word: 0}
    for source, target, message in (
        (fewer, vocabulary, f"expected {size} and {size} entries, got {size - 1} and {size}"),
        (vocabulary, fewer, f"expected {size} and {size} entries, got {size} and {size - 1}"),
        (ends, vocabulary, "expected </s> with eos_token_id=0, got the ids 5 and 0"),
        (vocabulary, ends, "expected </s> with eos_token_id=0, got the ids 0 and 5"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            opened(source, target)
        assert caught.value.code == CHECKPOINT


def test_generation_config_determines_the_decoding_defaults(tmp_path):
    write_marian(tmp_path, num_beams=7)
    path = tmp_path / "generation_config.json"
    config, _ = open_model(tmp_path, "best")
    assert config.decoding == DecodingConfig(
        beam_size=2,
        alpha=1.0,
        power_penalty=True,
        max_length=12,
        max_extra_length=50,
        suppress="<pad>",
    )
    content = json.loads(path.read_text()) | {
        "renormalize_logits": True,
        "length_penalty": 0.6,
        "max_length": None,
        "max_new_tokens": 9,
    }
    path.write_text(json.dumps(content))
    decoding = open_model(tmp_path, "best")[0].decoding
    assert (decoding.renormalize, decoding.alpha, decoding.max_length) == (True, 0.6, 9)
    rules = dict(min_length=5, no_repeat_ngram_size=3, forced_bos_token_id=7, early_stopping=True)
    path.write_text(json.dumps(content | rules))
    decoding, target = open_model(tmp_path, "best")[0].decoding, open_model(tmp_path, "best")[1][1]
    assert (decoding.min_length, decoding.no_repeat_ngram, decoding.stop) == (5, 3, "exact")
    assert (decoding.forced_prefix, decoding.forced_end) == (target.piece(7), False)
    for lengths, expected in (
        (dict(min_new_tokens=4, min_length=7, renormalize_logits=None), (5, 9)),
        (dict(max_length=5), (0, 9)),
        (dict(min_new_tokens=0, min_length=6, no_repeat_ngram_size=0), (0, 9)),
        (dict(min_length=8, max_length=8, max_new_tokens=None), (7, 7)),
    ):
        path.write_text(json.dumps(content | lengths))
        decoding = open_model(tmp_path, "best")[0].decoding
        assert (decoding.min_length, decoding.max_length) == expected
        assert not decoding.no_repeat_ngram
    path.write_text(json.dumps(content | {"length_penalty": None}))
    assert open_model(tmp_path, "best")[0].decoding.alpha == 1.0  # as in transformers
    path.unlink()
    assert open_model(tmp_path, "best")[0].decoding.beam_size == 7  # of config.json
    write_marian(tmp_path)
    path.unlink()
    assert open_model(tmp_path, "best")[0].decoding.beam_size == 1
    with pytest.raises(UserError, match="'7'"):
        open_model(tmp_path, "7")
