"""The vocabulary of a run from a SentencePiece model of the user: copy, resume, training."""

import io

import numpy as np
import pytest

from seq2seq.data.tokenizers.given_vocabulary import read_own_tokenizer
from seq2seq.data.tokenizers.vocabulary import load_tokenizers
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.storage.run import Run
from seq2seq.train import prepare_data
from tests.support.tiny import WORDS, tiny_config, write_corpus


@pytest.fixture
def model(tmp_path):
    """A model with unusual special ids and without a start token."""
    return write_model(tmp_path / "own.model", vocab_size=60)


def write_model(path, **options):
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS), " ".join(WORDS).upper()] * 9),
        model_writer=model, hard_vocab_limit=False, minloglevel=2,
        unk_id=7, pad_id=2, eos_id=5, bos_id=-1, **options,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture
def config(tmp_path, model):
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 40))
    config.data.vocab = str(model)
    return config


def prepared(config, path):
    """What train.py does before training."""
    run = Run(path)
    try:
        config = run.resume_config(config)
        config, data = prepare_data(config, run)
        run.check_and_record(config, data.file_hashes)
        return config, data
    finally:
        run.close()


def test_a_run_has_a_copy_of_the_model_and_resumes_without_the_original(config, model, tmp_path):
    expected = read_own_tokenizer(str(model))
    config, first = prepared(config, tmp_path / "run")
    assert (config.model.source_vocab_size, config.model.target_vocab_size) == (expected.size,) * 2
    assert config.special == (0, 1, 2, 3)
    model.unlink()
    _, again = prepared(config, tmp_path / "run")
    source, target = load_tokenizers(str(tmp_path / "run" / "vocab"))
    assert source is target
    for tokenizer in (first.tokenizers[0], again.tokenizers[1], source):
        assert tokenizer.encode_many(WORDS) == expected.encode_many(WORDS)
    ids = [data.train.select(np.arange(len(data.train))).source.ids for data in (first, again)]
    np.testing.assert_array_equal(*ids)


def test_a_model_that_changed_since_the_run_began_is_refused(config, model, tmp_path):
    prepared(config, tmp_path / "run")
    prepared(config, tmp_path / "run")  # unchanged
    write_model(model, vocab_size=50)
    with pytest.raises(UserError, match="data.vocab=.* changed since this run began") as caught:
        prepared(config, tmp_path / "run")
    assert caught.value.code == DATA


def test_another_model_or_none_cannot_resume_a_run(config, model, tmp_path):
    prepared(config, tmp_path / "run")
    config.data.vocab = ""
    with pytest.raises(UserError, match=r"data\.vocab '.*own\.model' → ''") as caught:
        prepared(config, tmp_path / "run")
    assert caught.value.code == CONFIGURATION


def test_an_unusable_model_does_not_start_a_run(config, model, tmp_path):
    model.write_bytes(b"")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        prepared(config, tmp_path / "run")
    assert not (tmp_path / "run" / "vocab").exists()
