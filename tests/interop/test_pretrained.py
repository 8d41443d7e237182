"""Directories of the BART and T5 families: logits and searches equal those of transformers."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from marks import slow_except
from tiny_pretrained import POSITIONS, loaded, write_pretrained

from seq2seq.data.tokenizers.tokenizer import ids_without_piece
from seq2seq.decoding.results import Source
from seq2seq.decoding.translator import Translator
from seq2seq.interop.models import load_params, open_model
from seq2seq.model.config import num_parameters
from seq2seq.model.transformer import Transformer

GATED = {"feed_forward_proj": "gated-gelu"}
FAMILIES = {
    "m2m_100": {}, "mbart": {"activation_function": "relu", "decoder_start_token_id": 2},
    "bart": {}, "pegasus": {"scale_embedding": True}, "t5": {}, "t5_gated": GATED, "mt5": {},
    "umt5": {}, "madlad": GATED,
}  # fmt: skip


def check_logits(path, reference):
    """Those of a directory as we read it, for padded sources and targets."""
    import torch

    config, _ = open_model(path, "best")
    model, params = config.model, load_params(path, "best")
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
    if model.tied_embeddings == "three-way":
        assert sum(x.size for x in jax.tree.leaves(params)) == num_parameters(model)
    longest = 150 if model.positions == "relative" else POSITIONS
    random = np.random.default_rng(0)
    source = random.integers(3, model.source_vocab_size, (2, longest)).astype(np.int32)
    target = random.integers(3, model.target_vocab_size, (2, 35)).astype(np.int32)
    mask = (np.arange(longest) < np.array([[longest], [4]])).astype(np.int32)
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(source).long(), attention_mask=torch.tensor(mask),
            decoder_input_ids=torch.tensor(target).long(),
        ).logits.numpy()  # fmt: skip
    apply = jax.jit(Transformer(model).apply)
    logits = apply({"params": params}, source, target, mask, np.ones_like(target))
    assert expected.std() > 0.05
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("family", slow_except(["m2m_100", "t5_gated"], FAMILIES))
def test_logits_equal_those_of_transformers(tmp_path, family):
    check_logits(tmp_path, write_pretrained(tmp_path, family, **FAMILIES[family]))


@pytest.mark.slow
def test_a_gated_model_that_transformers_has_saved_again_has_the_same_logits(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    reference = write_pretrained(first, "t5_gated", **GATED)
    write_pretrained(second, "t5_gated", **GATED)
    reference.save_pretrained(second)
    assert open_model(second, "best")[0].model == open_model(first, "best")[0].model
    check_logits(second, loaded(second))


SETTINGS = {  # of generation_config.json
    "greedy, 20 new tokens": {},
    "stops when 4 are finished": {
        "num_beams": 4, "early_stopping": True, "max_length": 14, "length_penalty": 2.0,
        "no_repeat_ngram_size": 3, "min_length": 5,
    },
    "stops when none is better": {"num_beams": 4, "early_stopping": False, "max_length": 12},
    "never stops early": {
        "num_beams": 4, "early_stopping": "never", "max_new_tokens": 11, "length_penalty": 0.8,
        "min_new_tokens": 3,
    },
}  # fmt: skip
FORCED = {"m2m_100": {"forced_bos_token_id": 61}, "t5_gated": {},
          "bart": {"forced_bos_token_id": 0, "forced_eos_token_id": 2}}  # fmt: skip

ENDS = {"m2m_100": 1.5, "bart": 1.1}  # added to the logit of the end token


def allowed(limit, end_id, size, _, prefix):
    """The tokens that may follow a prefix, which counts the start token."""
    return [end_id] if len(prefix) == limit else [*range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("family", FORCED)
def test_searches_with_the_settings_of_a_directory_equal_those_of_transformers(tmp_path, family):
    """The best hypothesis of 50 sources and its score, with the tokens suppressed that have no
    piece."""
    import torch

    reference = write_pretrained(tmp_path, family, ENDS.get(family, 0.0), **FAMILIES[family])
    params, random = load_params(tmp_path, "best"), np.random.default_rng(1)
    ids = json.loads((tmp_path / "generation_config.json").read_text())
    ids = {name: value for name, value in ids.items() if name.endswith("token_id")} | FORCED[family]
    differing = set()
    for name, settings in SETTINGS.items():
        (tmp_path / "generation_config.json").write_text(json.dumps(ids | settings))
        config, tokenizers = open_model(tmp_path, "best")
        model, size = config.model, tokenizers[1].size
        translator = Translator([model], tokenizers, config.decoding)
        translator.engine.use(params)
        sources = [random.integers(4, size, random.integers(1, 12)).tolist() for _ in range(50)]
        data, languages = config.data, tokenizers[1].languages
        begin = data.target_begin.replace("{target}", data.target_language).split()
        begin = [languages.get(piece, tokenizers[1].id_of(piece)) for piece in begin]
        assert [*begin, *translator.engine.forced] == [*FORCED[family].values()][:1]
        window = [
            Source(number, source, forced=(*begin, *translator.engine.forced))
            for number, source in enumerate(sources)
        ]
        results = {
            source.number: hypotheses[0]
            for result in translator.engine.search([window])
            for source, hypotheses in result
        }
        inputs, mask = np.full((50, 12), model.pad_id), np.zeros((50, 12), int)
        for row, source in enumerate(sources):
            inputs[row, : len(source) + 1] = [*source, model.end_id]
            mask[row, : len(source) + 1] = 1
        never = sorted({model.pad_id, *ids_without_piece(tokenizers[1], model.target_vocab_size)})
        fields = settings or {"max_new_tokens": 20}
        if "forced_eos_token_id" not in ids:  # there the output has no end at its limit
            fields = fields | {
                "prefix_allowed_tokens_fn": partial(
                    allowed, config.decoding.max_length, model.end_id, model.target_vocab_size
                )
            }
        generated = reference.generate(
            input_ids=torch.tensor(inputs), attention_mask=torch.tensor(mask),
            bad_words_ids=[[token] for token in never], return_dict_in_generate=True,
            output_scores=True, **fields, **FORCED[family],
        )  # fmt: skip
        for i, row in enumerate(generated.sequences.tolist()):
            row = [*row[1:], model.end_id]
            if settings.get("num_beams"):
                score = generated.sequences_scores[i].item()
                assert results[i].score == pytest.approx(score, abs=1e-5), (name, i)
            assert list(results[i].ids) == row[: row.index(model.end_id)], (name, i)
            differing.add(len(results[i].ids))
    assert len(differing) > 3, differing
