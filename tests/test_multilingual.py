"""A model that is trained on tagged corpora translates into the language that the tag names."""

from itertools import product
from random import Random

import pytest

from seq2seq import Translator
from tests.support.runs import run_training
from tests.support.tiny import WORDS, tiny_config

TARGETS = {  # tag → target of a source
    ">>upper<<": str.upper,
    ">>reversed<<": lambda source: " ".join(reversed(source.split())),
}


@pytest.fixture(scope="module")
def sources():
    """Sentences of one to three words, for training and held out."""
    lines = [" ".join(words) for count in (1, 2, 3) for words in product(WORDS, repeat=count)]
    Random(0).shuffle(lines)
    return lines[:-100], lines[-100:]


@pytest.fixture(scope="module")
def translator(sources, tmp_path_factory):
    """A model of two corpora with the same sources and different targets."""
    path = tmp_path_factory.mktemp("multilingual")
    parts = []
    for number, (tag, target) in enumerate(TARGETS.items()):
        lines = [f"{source}\t{target(source)}\n" for source in sources[0]]
        (path / f"{number}.tsv").write_text("".join(lines), encoding="utf-8")
        parts.append(f"tag:{tag}:tsv:{path / f'{number}.tsv'}")
    config = tiny_config(" + ".join(parts))
    config.model.d_model, config.model.d_ff, config.model.dropout = 32, 64, 0.0
    config.training.num_steps = config.training.eval_every = config.training.checkpoint_every = 300
    config.training.tokens_per_batch, config.training.log_every = 16 * 16, 100
    run_training(path / "run", config)
    return Translator.load(path / "run")


@pytest.mark.slow
def test_the_tag_alone_decides_the_target_of_unseen_sources(translator, sources):
    for tag, target in TARGETS.items():
        translations = translator.translate([f"{tag} {source}" for source in sources[1]])
        right = sum(text == target(s) for text, s in zip(translations, sources[1], strict=True))
        assert right >= 0.9 * len(translations), (tag, right, translations[:20], sources[1][:20])
