"""configs/small.py is recommended to large models with few pairs or too little memory only."""

from types import SimpleNamespace

import pytest
from memory_pairs import MemoryPairs
from test_configs import config_of

from data.batches import Batches, DataPosition
from data.pairs import Pairs, ragged
from model.config import num_parameters
from storage.config import Config
from training.failure import out_of_memory_message
from training.recommendation import LARGE, size_hint
from training.report import announce, jax

# The recorded numbers of training pairs, and of entries of the joint vocabulary.
RECORDED = {
    "korean_english": (20_000, 1500),
    "multi30k": (29_000, 5000),
    "multi30k_published": (29_000, 10_000),
    "scan": (15_892, 60),
    "cmudict": (108_699, 64),
    "tatoeba_en_de": (156_867, 8000),
    "korean_english_docs": (82_895, 8000),
    "base": (4_500_000, 37_000),
    "big": (36_000_000, 37_000),
    "small": (20_000, 8000),
}


def with_vocabulary(name: str, size: int) -> Config:
    config = config_of(name)
    config.model.source_vocab_size = config.model.target_vocab_size = size
    return config


@pytest.mark.parametrize("name", RECORDED)
def test_a_config_that_fits_its_pairs_has_no_hint(name):
    pairs, size = RECORDED[name]
    assert size_hint(with_vocabulary(name, size), pairs) == ""


def test_the_base_model_fits_three_hundred_thousand_pairs():
    assert size_hint(with_vocabulary("base", 37_000), 300_000) == ""


@pytest.mark.parametrize(("name", "pairs"), [("base", 20_000), ("base", 200_000), ("big", 500_000)])
def test_a_large_model_with_few_pairs_has_the_hint(name, pairs):
    hint = size_hint(with_vocabulary(name, 37_000), pairs)
    assert "configs/small.py" in hint and f"{pairs:,} pairs" in hint and "\n" not in hint


@pytest.mark.parametrize("kind", ["rnn", "rnn_attention"])
def test_a_large_rnn_has_the_hint_of_a_narrower_model(kind):
    config = with_vocabulary("base", 37_000)
    config.model.kind = kind
    hint = size_hint(config, 20_000)
    assert "small.py" not in hint and hint.endswith("a lower --config.model.d_model is recommended")
    message = out_of_memory_message("", config)
    assert message.endswith("or a smaller model (a lower --config.model.d_model)")


def announced(config: Config, resumed: bool = False) -> list[str]:
    """The lines that `announce` logs for 30 pairs."""
    sides = ragged([[5, 2]] * 30), ragged([[6, 7, 2]] * 30)
    batches = Batches(MemoryPairs(Pairs(*sides)), 2, 8, 8, 0)
    lines: list[str] = []
    announce(config, SimpleNamespace(resumed=resumed, log=lines.append), batches, DataPosition())
    batches.close()
    return lines


@pytest.mark.parametrize("resumed", [False, True])
def test_the_hint_is_logged_once_at_the_start_of_a_run(resumed):
    lines = announced(with_vocabulary("base", 8), resumed)
    assert sum(line.startswith("hint: 30 pairs") for line in lines) == (not resumed)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed", "bfloat16"])
def test_mixed_is_recommended_for_float32_on_an_accelerator(dtype, resumed, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    config = with_vocabulary("small", 8)
    config.model.dtype = dtype
    hints = [line for line in announced(config, resumed) if "model.dtype=mixed" in line]
    assert len(hints) == (dtype == "float32")


def test_a_fine_tuned_model_may_be_large():
    config = with_vocabulary("base", 37_000)
    config.training.init_from = "runs/other"
    assert size_hint(config, 1000) == ""


def test_the_recommended_model_is_never_large_itself():
    """Also with two vocabularies of its size."""
    config = with_vocabulary("small", 8000)
    config.model.tied_embeddings = "none"
    assert num_parameters(config.model) < LARGE
    assert size_hint(config, 1000) == ""
    assert "configs/small.py" not in out_of_memory_message("", config)


def test_a_large_model_that_does_not_fit_into_memory_has_the_recommendation():
    message = out_of_memory_message("", with_vocabulary("base", 37_000))
    assert message.endswith("or a smaller model (--config=configs/small.py)")
