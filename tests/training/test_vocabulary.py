"""The vocabulary of a run has the tags of its corpora as single pieces."""

import os
from contextlib import closing
from copy import deepcopy

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.config.special_tokens import OUR_IDS
from seq2seq.config.tree import Config
from seq2seq.data.corpora.registry import open_parts
from seq2seq.data.tokenizers.vocabulary import vocabulary_sha256
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.logs import no_log
from seq2seq.storage.run import Run
from seq2seq.training import vocabulary
from seq2seq.training.vocabulary import find_tokenizers, with_vocabulary
from tests.support.models.tiny_tokenizers import multilingual
from tests.support.tiny import tiny_config, write_corpus, write_run

TAGS = ">>rev<<", ">>sw<<"


@pytest.fixture
def config(tmp_path):
    """A mixture of two corpora with tags."""
    specs = [write_corpus(tmp_path / f"{n}.tsv", n, seed=n) for n in (23, 31)]
    mixture = " + ".join(f"tag:{tag}:{spec}" for tag, spec in zip(TAGS, specs, strict=True))
    return tiny_config(mixture)


def tokenizers_of(config, path):
    with closing(Run(path)) as run:
        config = run.resume_config(config)
        parts = open_parts(config.data.corpus, "train", config.data)
        return find_tokenizers(config, run, parts, None)[1]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "words", "characters"])
def test_each_tag_of_the_training_corpus_is_one_piece_of_the_source_vocabulary(
    kind, config, tmp_path
):
    config.data.tokenizer = kind
    source, _ = tokenizers_of(config, tmp_path / "run")
    for tag in TAGS:
        assert source.encode(f"{tag} eins").count(source.id_of(tag)) == 1


@pytest.mark.parametrize("kind", ["unigram", "characters"])
def test_decomposed_tags_and_user_defined_pieces_are_composed(kind, config, tmp_path):
    """As the texts in which they occur; é can be one character or two."""
    composed, decomposed = ">>é<<", ">>e\u0301<<"
    config.data.tokenizer = kind
    config.data.corpus = config.data.corpus.replace(TAGS[0], decomposed)
    config.data.user_defined = "<e\u0301>"
    source, _ = tokenizers_of(config, tmp_path / "run")
    for piece in (composed, "<é>"):
        assert source.encode(f"{piece} eins").count(source.id_of(piece)) == 1


@pytest.mark.parametrize("kind", ["unigram", "words"])
def test_a_tag_that_occurs_in_words_is_a_warning(kind, config):
    """Of a vocabulary of words a tag is only a whole word."""
    config.data.tokenizer, corpus, logged = kind, config.data.corpus, []
    for tag in TAGS[0], "de", "de2":
        config.data.corpus = corpus.replace(TAGS[0], tag)
        readers = open_parts(config.data.corpus, "train", config.data)
        vocabulary.new_tokenizers(config.data, readers, None, logged.append)
    warnings = [line.partition(" is cut")[0] for line in logged]
    assert warnings == [f"warning: the tag {tag}" for tag in ("de", "de2") if kind != "words"]


@pytest.mark.parametrize("names", ["{}", "one={}; two={}"])
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_held_out_tag_without_training_data_is_refused(split, names, config, tmp_path):
    corpus = config.data.corpus
    odd = corpus.replace(">>sw<<", ">>odd<<")
    setattr(config.data, split, names.format(*[corpus, odd][-names.count("{}") :]))
    with pytest.raises(UserError, match=f"data.{split}: the tag >>odd<< is not in") as caught:
        tokenizers_of(config, tmp_path / "run")
    assert caught.value.code == CONFIGURATION


def test_a_tag_that_a_fixed_vocabulary_lacks_is_refused(config, tmp_path):
    write_run(tmp_path / "first")  # a vocabulary of words without tags
    config.training.init_from = str(tmp_path / "first")
    with pytest.raises(UserError, match="tag >>rev<< .* got <unk>; .*training.init_from") as caught:
        tokenizers_of(config, tmp_path / "run")
    assert caught.value.code == CONFIGURATION


def test_a_user_defined_piece_that_the_initial_vocabulary_lacks_is_refused(config, tmp_path):
    first, config.data.user_defined = write_corpus(tmp_path / "first.tsv", 7), "<num> <url>"
    tokenizers = tokenizers_of(deepcopy(config), tmp_path / "other")
    write_run(tmp_path / "first")  # a vocabulary without these pieces
    config.data.corpus, config.training.init_from = first, str(tmp_path / "first")
    second = deepcopy(config)
    with pytest.raises(UserError, match="data.user_defined: <num> is not in the voc") as caught:
        tokenizers_of(config, tmp_path / "run")
    assert caught.value.code == CONFIGURATION
    write_run(tmp_path / "second", tokenizer=tokenizers[0])
    second.training.init_from = str(tmp_path / "second")
    assert tokenizers_of(second, tmp_path / "run")[1].id_of("<url>") is not None


def test_the_vocabulary_of_a_corpus_that_changes_is_not_stored(config, tmp_path, monkeypatch):
    sample_texts, cache = vocabulary.sample_texts, CorpusCache(tmp_path / "cache", 0)

    def changed(readers, *arguments):
        os.utime(tmp_path / "31.tsv", ns=(0, 5))
        return sample_texts(readers, *arguments)

    monkeypatch.setattr(vocabulary, "sample_texts", changed)
    for refused in (True, False):
        readers = open_parts(config.data.corpus, "train", config.data)
        if refused:
            with pytest.raises(UserError, match="31.tsv changed while it was read") as caught:
                vocabulary.new_tokenizers(config.data, readers, cache, no_log)
            assert caught.value.code == DATA and not cache.vocabularies.exists()
        else:  # the second change is none
            vocabulary.new_tokenizers(config.data, readers, cache, no_log)
            assert len(list(cache.vocabularies.iterdir())) == 1


def test_a_small_corpus_uses_a_vocabulary_that_was_prepared_but_stores_none(
    config, tmp_path, monkeypatch
):
    prepared, small_only = (CorpusCache(tmp_path / "cache", size) for size in (0, 1 << 40))

    def vocabulary_of(cache):
        readers = open_parts(config.data.corpus, "train", config.data)
        return vocabulary_sha256(vocabulary.new_tokenizers(config.data, readers, cache, no_log))

    trained = vocabulary_of(small_only)
    assert not prepared.directory.exists()
    assert vocabulary_of(prepared) == trained
    monkeypatch.delattr(vocabulary, "train_tokenizers")
    assert vocabulary_of(small_only) == trained


def test_a_language_that_no_text_has_is_refused(config, tmp_path):
    for side, other in (("source", "target"), ("target", "source")):
        changed = deepcopy(config)
        changed.data.source_begin = f"{{{other}}}"
        setattr(changed.data, f"{side}_language", "de")
        message = f"data.{side}_language=de has no effect: expected {{{side}}} in one of"
        with pytest.raises(UserError, match=message) as refused:
            tokenizers_of(changed, tmp_path / side)
        assert refused.value.code == CONFIGURATION
        changed.data.source_begin = f"{{{side}}}"  # has an effect, but not in this vocabulary
        with pytest.raises(UserError, match="expected a multilingual model"):
            tokenizers_of(changed, tmp_path / side)


def test_the_start_token_is_that_of_the_target_language():
    tokenizers = (multilingual(),) * 2
    data = DataConfig(target_start="{target}", target_language="kor_Hang")
    config = with_vocabulary(Config(data=data), tokenizers)
    assert config.special == OUR_IDS._replace(start=tokenizers[0].languages["kor_Hang"])
    assert with_vocabulary(config, tokenizers) == config  # of a run that is resumed
    with pytest.raises(UserError, match="data.target_language is missing"):
        with_vocabulary(Config(data=DataConfig(target_start="{target}")), tokenizers)
