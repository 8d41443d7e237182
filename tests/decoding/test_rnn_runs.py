"""Runs of RNNs: translation, scores, ensembles, what is refused; the commands from end to end."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from seq2seq.decoding.translator import Translator
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.scripts.pages.attention_data import Example, view_data
from tests.support.forked import call_forked
from tests.support.models.quick_search import quick_searches
from tests.support.models.random_translator import scored
from tests.support.runs import run_training, state_bytes
from tests.support.tiny import WORDS, tiny_config, tiny_rnn, write_corpus, write_run

ROOT = Path(__file__).parents[2]
KINDS = ("rnn", "rnn_attention")
LINES = ["eins zwei drei", "", "vier", "fünf sechs eins zwei"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    for seed, kind in enumerate(KINDS):
        write_run(directory / kind, seed, kind=kind)
    return [directory / kind for kind in KINDS]


def test_annotated_translations_of_an_ensemble_have_the_scores_of_their_texts(runs):
    """tests/decoding/test_decoding_combinations.py searches with such an ensemble."""
    translator = Translator.load(runs)
    assert not translator.can_align and Translator.load(runs[1]).can_align
    with quick_searches():
        translations = list(translator.stream(LINES, annotate=True))
    assert translations[1].text == "" and set(translations[0].text.split()) <= set(WORDS)
    pairs = [
        (line, translation.text) for line, translation in zip(LINES, translations, strict=True)
    ]
    for translation, forced in zip(translations, scored(translator, pairs), strict=True):
        if forced is not None and "⁇" not in translation.text:
            best = translation.hypotheses[0]
            assert best.scored == forced
            assert best.scored.links == forced.links == []  # one of the models cannot align


def test_attention_weights_of_an_rnn_are_those_that_its_decoder_computes(runs):
    with pytest.raises(UserError, match="transformer or rnn_attention, got rnn") as caught:
        Translator.load(runs[0]).attention("eins")
    assert caught.value.code == CONFIGURATION
    translator = Translator.load(runs[1])
    attention = translator.attention("eins zwei drei", "FÜNF VIER")
    source, target = len(attention.source), len(attention.target)
    assert attention.encoder.shape == (0, 1, source, source)
    assert attention.decoder.shape == (0, 1, target, target)
    assert attention.cross.shape == (1, 1, target, source) and attention.cross.std() > 0
    np.testing.assert_allclose(attention.cross.sum(axis=-1), 1, atol=1e-6)
    (forced,) = scored(translator, [("eins zwei drei", "FÜNF VIER")])
    links = [(int(i), j) for j, i in enumerate(attention.cross[0, 0, :-1, :-1].argmax(axis=-1))]
    assert forced.links == links
    (kind,) = view_data(Example(attention, "a", "b"))["kinds"]
    assert (kind["name"], kind["layers"], kind["heads"]) == ("cross", 1, 1)


@pytest.mark.slow
def test_alignment_needs_attention(runs, tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_text("eins zwei\n")
    files = f"--input={tmp_path / 'source'}", f"--target={tmp_path / 'target'}"
    refused, done = (
        call_forked([ROOT / "decode.py", f"--workdir={run}", "--mode=align", *files])
        for run in runs
    )
    assert (refused.code, refused.out) == (2, "")
    assert "--mode=align is not supported by model.kind=rnn" in refused.err[-1]
    assert done.code == 0 and len(done.out.split()) == 2
    assert all(link.split("-")[1] == str(j) for j, link in enumerate(done.out.split()))


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    def config():
        config = tiny_config(write_corpus(tmp_path / "corpus.tsv", 60))
        config.model = tiny_rnn("rnn_attention")
        config.model.dropout = 0.2
        return config

    run_training(tmp_path / "one", config())
    with pytest.raises(Stopped):
        run_training(tmp_path / "two", config(), stop_after=5)
    run_training(tmp_path / "two", config())
    assert state_bytes(tmp_path / "one") == state_bytes(tmp_path / "two")


@pytest.mark.slow
def test_the_commands_train_and_translate_with_an_rnn(tmp_path):
    """It learns to write words in upper case in reversed order."""
    config = tiny_config(write_corpus(tmp_path / "corpus.tsv", 2000))
    config.model = ModelConfig(
        kind="rnn_attention", d_model=64, num_layers=1, max_length=32, dropout=0.0
    )
    config.training.num_steps, config.training.tokens_per_batch = 200, 512
    config.training.eval_every = config.training.checkpoint_every = 200
    config.training.log_every, config.training.warmup_steps = 50, 50
    default = type(config)()
    arguments = [
        f"--config.{part}.{name}={value}"
        for part, section in asdict(config).items()
        for name, value in section.items()
        if value != getattr(getattr(default, part), name)
    ]
    run = tmp_path / "run"
    base = ROOT / "configs" / "base.py"
    done = call_forked([ROOT / "train.py", f"--config={base}", f"--workdir={run}", *arguments])
    assert done.code == 0, done.err
    lines = ["eins zwei drei", "vier", "elf zehn neun acht"]
    stdin = "".join(f"{line}\n" for line in lines).encode()
    done = call_forked([ROOT / "decode.py", f"--workdir={run}"], stdin)
    assert done.code == 0, done.err
    expected = [" ".join(reversed(line.upper().split())) for line in lines]
    assert done.out.split("\n")[:-1] == expected
