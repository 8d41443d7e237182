"""Held-out data: one corpus, or a list of corpora with names."""

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.held_out import held_out_specs, named_corpora, qualified
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError


def write_corpus(path):
    """A TSV corpus of two pairs; its specification."""
    path.write_text("a\tb\nc\td\n")
    return f"tsv:{path}"


@pytest.mark.parametrize(
    "spec",
    ["text:a.de,a.en", "tsv:a=b.tsv", "tsv:a;b=c.tsv", "tfds:x/y:test", "tsv:a + text:b=c,d"],
)
def test_one_corpus_has_no_name_whatever_its_path(spec):
    assert named_corpora(spec, "field") == {"": spec}


@pytest.mark.parametrize("written", ["{}={}; {}={}", "{}={};{}={}", " {} = {} ;\n {} = {} "])
def test_a_list_has_its_corpora_in_order_by_name(written):
    parts = ["news", "text:a.de,a.en + tsv:b=c.tsv", "1_web-x", "tfds:x/y:test"]
    named = named_corpora(written.format(*parts), "field")
    assert list(named.items()) == [tuple(parts[:2]), tuple(parts[2:])]


def test_a_list_may_have_one_entry():
    assert named_corpora("news=tsv:a.tsv", "field") == {"news": "tsv:a.tsv"}


@pytest.mark.parametrize(
    "spec, entry",
    [
        ("a=tsv:x;", "''"),
        ("a=tsv:x;;b=tsv:y", "''"),
        ("a=tsv:x; tsv:y", "'tsv:y'"),
        ("tsv:x; tsv:y", "'tsv:x'"),
        ("text:x,y; b=tag:>>b<<:tsv:y", "'text:x,y'"),
        ("a=tsv:x; b=", "'b='"),
        ("=tsv:x", "'=tsv:x'"),
        ("a b=tsv:x", "'a b=tsv:x'"),
        ("a/b=tsv:x", "'a/b=tsv:x'"),
        ("ä=tsv:x", "'ä=tsv:x'"),
    ],
)
def test_a_malformed_list_is_refused_with_its_entry(spec, entry):
    with pytest.raises(UserError) as refused:
        held_out_specs(DataConfig(valid=spec), "valid")
    assert refused.value.code == CONFIGURATION
    assert str(refused.value).startswith("config.data.valid is malformed: expected one corpus")
    assert str(refused.value).endswith(f"got the entry {entry}")


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    spec = write_corpus(tmp_path / "a.tsv")
    with pytest.raises(UserError, match="config.data.test has two corpora 'a'") as refused:
        held_out_specs(DataConfig(test=f"a={spec}; b={spec}; a={spec}"), "test")
    assert refused.value.code == CONFIGURATION


def test_every_corpus_of_a_list_is_checked(tmp_path):
    spec = write_corpus(tmp_path / "a.tsv")
    assert held_out_specs(DataConfig(valid=f"a={spec}; b={spec}"), "valid") == {
        "a": spec,
        "b": spec,
    }
    for other_spec, code, part in (
        (f"{spec}x", DATA, "a.tsvx"),
        (f"2*{spec}", CONFIGURATION, "data.valid has a weight"),
        ("csv:a", CONFIGURATION, "got 'csv:a'"),
    ):
        with pytest.raises(UserError, match=part) as refused:
            held_out_specs(DataConfig(valid=f"a={spec}; b={other_spec}"), "valid")
        assert refused.value.code == code


def test_without_a_corpus_the_split_of_the_training_corpus_is_used(tmp_path):
    assert held_out_specs(DataConfig(), "test") == {"": DataConfig().corpus}
    spec = write_corpus(tmp_path / "a.tsv")
    assert held_out_specs(DataConfig(corpus=spec), "valid") == {}


def test_a_title_is_followed_by_the_name_if_there_is_one():
    assert (qualified("valid", "news"), qualified("valid", "")) == ("valid news", "valid")
