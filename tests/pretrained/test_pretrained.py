"""Directories of the BART and T5 families: logits and searches equal those of transformers."""

import json
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from seq2seq.data.tokenizers.tokenizer import ids_without_piece
from seq2seq.decoding.translator import Translator
from seq2seq.model.config import num_parameters
from seq2seq.model.transformer import Transformer
from seq2seq.pretrained.models import load_params, open_model
from tests.support.marks import slow_except
from tests.support.models.tiny_pretrained import POSITIONS, libraries, loaded, write_pretrained

GATED = {"feed_forward_proj": "gated-gelu"}
FAMILIES = {
    "m2m_100": {}, "mbart": {"activation_function": "relu", "decoder_start_token_id": 62},
    "mbart_50": {"decoder_start_token_id": 2}, "bart": {}, "pegasus": {"scale_embedding": True},
    "t5": {}, "t5_gated": GATED, "mt5": {}, "umt5": {}, "madlad": GATED,
}  # fmt: skip


def logit_difference(path, reference, **changes):
    """The largest difference of the logits of a directory as we read it, with `changes` of its
    ModelConfig, from those of transformers, relative to the largest of these. Sources are padded.
    """
    torch, _ = libraries()
    model, params = open_model(path, "best")[0].model, load_params(path, "best")
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
    if model.tied_embeddings == "three-way":
        assert sum(x.size for x in jax.tree.leaves(params)) == num_parameters(model)
    longest = 150 if model.positions == "relative" else POSITIONS  # all buckets, or positions
    random = np.random.default_rng(0)
    source, target = random.integers(3, model.source_vocab_size, (2, 2, longest)).astype(np.int32)
    mask = (np.arange(longest) < np.array([[longest], [4]])).astype(np.int32)
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(source).long(), attention_mask=torch.tensor(mask),
            decoder_input_ids=torch.tensor(target).long(),
        ).logits.numpy()  # fmt: skip
    apply = jax.jit(Transformer(replace(model, **changes)).apply)
    logits = apply({"params": params}, source, target, mask, np.ones_like(target))
    return np.abs(logits - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("family", slow_except(["m2m_100", "t5_gated"], FAMILIES))
def test_logits_equal_those_of_transformers(tmp_path, family):
    reference = write_pretrained(tmp_path, family, **FAMILIES[family])
    assert logit_difference(tmp_path, reference) < 1e-5


OUTPUT = "lm_head.weight"
FORMS = {  # family, fields of config.json (None: absent), whether the file has an output matrix
    "T5 v1.0": ("t5", {"tie_word_embeddings": None, "scale_decoder_outputs": None}, False),
    "T5 v1.0 with its table twice": ("t5", {"scale_decoder_outputs": None}, True),
    "tied, with another output matrix": ("t5_gated", {"tie_word_embeddings": True}, True),
    "with a scale": ("t5_gated", {"scale_decoder_outputs": True}, True),
    "mT5 without an output matrix": ("mt5", {"tie_word_embeddings": True}, False),
}


@pytest.mark.slow
def test_forms_of_the_output_matrix_have_the_logits_of_transformers(tmp_path):
    """Among them one that transformers has saved again. A table that is stored twice is read as two
    matrices of equal values."""
    first = write_pretrained(tmp_path / "first", "t5_gated", **GATED)
    write_pretrained(tmp_path / "again", "t5_gated", **GATED)
    first.save_pretrained(tmp_path / "again")
    models = [open_model(tmp_path / name, "best")[0].model for name in ("first", "again")]
    assert models[0] == models[1]
    assert logit_difference(tmp_path / "again", loaded(tmp_path / "again")) < 1e-5
    for name, (family, fields, has_output) in FORMS.items():
        path = tmp_path / name
        write_pretrained(path, family, **FAMILIES[family])
        content = json.loads((path / "config.json").read_text()) | fields
        content = {field: value for field, value in content.items() if value is not None}
        (path / "config.json").write_text(json.dumps(content))
        weights = load_file(path / "model.safetensors")
        if not has_output:
            weights.pop(OUTPUT, None)
        elif OUTPUT not in weights:
            weights[OUTPUT] = weights["shared.weight"].copy()
        save_file(weights, path / "model.safetensors", {"format": "pt"})
        assert logit_difference(path, loaded(path)) < 1e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bart", "t5_gated"])
def test_a_wrong_epsilon_of_the_norms_changes_the_logits_of_small_activations(tmp_path, family):
    """Other models hardly show it."""
    fields = GATED if family == "t5_gated" else {"tie_word_embeddings": False}
    reference = write_pretrained(tmp_path, family, inputs=3e-3, **fields)
    assert logit_difference(tmp_path, reference) < 1e-5
    other = {"bart": 1e-6, "t5_gated": 1e-5}[family]
    assert logit_difference(tmp_path, reference, layer_norm_epsilon=other) > 0.1


SHORT, LONG = (1, 12), (42, 60)  # letters of sources
NOT_FIRST = [*range(20, 40)]
SETTINGS = {  # the letters of sources, and generation_config.json
    "greedy, 20 new tokens": (SHORT, {}),
    "stops when 4 are finished": (SHORT, {
        "num_beams": 4, "early_stopping": True, "max_length": 14, "no_repeat_ngram_size": 3,
        "min_length": 5,
    }),
    "stops when none is better at once": (LONG, {
        "num_beams": 5, "early_stopping": False, "max_length": 12, "no_repeat_ngram_size": 2,
    }),
    "never stops early": (SHORT, {
        "num_beams": 8, "early_stopping": "never", "max_new_tokens": 11, "min_new_tokens": 3,
        "no_repeat_ngram_size": 2, "suppress_tokens": [6, 9], "begin_suppress_tokens": NOT_FIRST,
    }),
}  # fmt: skip
GREEDY, NOW, FULL, NEVER = SETTINGS
PENALTIES = 0.8, 1.0, 2.0  # one compiled program serves all


class Case(NamedTuple):
    """How the sources and searches of a family differ from those of others."""

    settings: list[str]
    forced: dict[str, int] = {}  # fields of generation_config.json
    before: tuple[int, ...] = ()  # tokens before a source
    after: tuple[int, ...] = ()  # tokens after its end token
    language: str = ""  # of sources
    end: float = 0.0  # is added to the logit of the end token, so that hypotheses end
    never: tuple[int, ...] = ()  # tokens of bad_words_ids


FIRST, LAST = "forced_bos_token_id", "forced_eos_token_id"
CASES = {
    "m2m_100": Case([GREEDY, FULL, NEVER], {FIRST: 61}, (62,), (), "eng_Latn", 3.0),
    # mBART's start token is a language: generated again, it would be in n-grams there.
    "mbart": Case([NOW, FULL], {LAST: 2}, (), (61,), "pes_Arab", 1.0, (62,)),
    "mbart_50": Case([FULL, NEVER], {FIRST: 62, LAST: 2}, (61,), (), "ar_AR", 2.4),
    "bart": Case([NOW, FULL, NEVER], {FIRST: 0, LAST: 2}, (0,), end=2.0),
    "pegasus": Case([FULL, NEVER], {LAST: 1}, end=2.2),
    "t5_gated": Case([*SETTINGS]),
}


def searched_by_transformers(reference, sources, config, tokenizer, case, settings):
    """The ids and score of the best hypothesis of each source, a list of ids with its end token."""
    torch, _ = libraries()
    model, width = config.model, max(map(len, sources))
    inputs = [source + [model.pad_id] * (width - len(source)) for source in sources]
    mask = [[1] * len(source) + [0] * (width - len(source)) for source in sources]
    never = {model.pad_id, *ids_without_piece(tokenizer, model.target_vocab_size), *case.never}
    fields = settings | case.forced
    if LAST not in case.forced:  # without it the output has no end at its limit
        limit, every = config.decoding.max_length, [*range(model.target_vocab_size)]
        fields["prefix_allowed_tokens_fn"] = lambda _, prefix: (
            [model.end_id] if len(prefix) == limit else every
        )
    generated = reference.generate(
        input_ids=torch.tensor(inputs), attention_mask=torch.tensor(mask),
        bad_words_ids=[[token] for token in sorted(never)], return_dict_in_generate=True,
        output_scores=True, **fields,
    )  # fmt: skip
    rows = [[*row[1:], model.end_id] for row in generated.sequences.tolist()]
    ids = [row[: row.index(model.end_id)] for row in rows]
    is_greedy = "num_beams" not in settings
    return ids, None if is_greedy else generated.sequences_scores.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("family", CASES)
def test_searches_with_the_settings_of_a_directory_equal_those_of_transformers(tmp_path, family):
    """The best hypotheses of 50 texts and their scores, with the tokens suppressed that have no
    piece. Sources beyond the table of positions are truncated here, and refused there."""
    case, random = CASES[family], np.random.default_rng(1)
    reference = write_pretrained(tmp_path, family, case.end, **FAMILIES[family])
    params, generation = load_params(tmp_path, "best"), tmp_path / "generation_config.json"
    ids = json.loads(generation.read_text())
    ids = {name: value for name, value in ids.items() if name.endswith("token_id")} | case.forced
    ids |= {"bad_words_ids": [[token] for token in case.never]}
    hypotheses, truncated = set(), False
    for name, penalty in product(case.settings, PENALTIES):
        (fewest, most), fields = SETTINGS[name]
        generation.write_text(json.dumps(ids | fields | {"length_penalty": penalty}))
        config, (tokenizer, _) = open_model(tmp_path, "best")
        data = replace(config.data, source_language=case.language)
        translator = Translator([config.model], (tokenizer,) * 2, config.decoding, data=data)
        translator.use(params)
        texts = [
            "".join(random.choice([*"abdehinrst"], length))
            for length in random.integers(fewest, most + 1, 50)
        ]
        lines = [*translator.stream(texts)]
        has_table = config.model.positions != "relative"
        room = POSITIONS - len(case.before) - 1 - len(case.after) if has_table else None
        sources = [
            [*case.before, *tokenizer.encode(text)[:room], config.model.end_id, *case.after]
            for text in texts
        ]
        settings = (fields or {"max_new_tokens": 20}) | {"length_penalty": penalty}
        expected, scores = searched_by_transformers(
            reference, sources, config, tokenizer, case, settings
        )
        results = [line.hypotheses[0] for line in lines]
        assert [[*result.ids] for result in results] == expected, (name, penalty)
        if scores is not None:
            np.testing.assert_allclose([result.score for result in results], scores, atol=1e-5)
        hypotheses |= {(penalty, *result.ids) for result in results}
        truncated |= any(line.truncated for line in lines)
    assert len(set(map(len, hypotheses))) > 3 and len(hypotheses) > 50
    assert truncated == has_table
    if family not in ("m2m_100", "t5_gated"):  # their positions have no limit there
        with pytest.raises(IndexError):
            reference(input_ids=libraries()[0].full((1, POSITIONS + 1), 5))
