"""Corpora: specifications in the configuration, their data, and the errors of invalid ones."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora import registry as corpora
from seq2seq.data.corpora.blocks import blocks_of
from seq2seq.data.corpora.raw_corpus import RawCorpus
from seq2seq.data.corpora.registry import check_corpus, open_parts, read_corpus, split_spec
from seq2seq.data.corpora.tfds import _languages, builder_blocks
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError


def read_split(config, split):
    """The pairs of a split; None if the corpora do not have it."""
    spec = split_spec(config, split)
    return read_corpus(spec, split, config) if spec else None


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A directory with prepared TFDS data sets: pairs of text, and some that cannot be read."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class Toy(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self, supervised_keys=self.KEYS, features=self.FEATURES
            )

        def _split_generators(self, _):
            return {"train": self._generate_examples(13), "validation": self._generate_examples(7)}

        def _generate_examples(self, count):
            for i in range(count):
                yield i, self.example(i)

    class ToyTranslate(Toy):
        KEYS = ("en", "de")
        FEATURES = tfds.features.Translation(["de", "en"])

        def example(self, i):
            return {"de": f"Wort\n{i}", "en": f"word {i}"}

    class ToyNumbers(Toy):
        KEYS = None
        FEATURES = tfds.features.FeaturesDict({"one": tfds.features.Text(), "two": np.int32})

        def example(self, i):
            return {"one": "a", "two": i}

    class ToyRecords(ToyTranslate):
        pass

    directory = tmp_path_factory.mktemp("tfds")
    for builder in (ToyTranslate, ToyNumbers, ToyRecords):
        builder(data_dir=str(directory), file_format="array_record").download_and_prepare()
    info = directory / "toy_records/1.0.0/dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    for config in ("de-en", "fr-en"):
        (directory / "toy_many" / config / "1.0.0").mkdir(parents=True)
        (directory / "toy_many" / config / "1.0.0/dataset_info.json").write_text("{}")
    (directory / "toy_translate" / "1.0.0.incompleteAB12").mkdir()
    (directory / "toy_translate" / "1.0.0.incompleteAB12" / "dataset_info.json").write_text("{")
    (directory / "toy_cut" / "1.0.0").mkdir(parents=True)
    (directory / "toy_cut" / "1.0.0" / "dataset_info.json").write_text("{")
    return str(directory)


def refused(code, call, *args, **settings):
    with pytest.raises(UserError) as caught:
        call(*args, **settings)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "train.de",
        "csv:a",
        "text:a",
        "text:a,b,c",
        "text:a,",
        "text:a,b,",
        "tsv:",
        "builtin:klingon",
        "tfds:../etc",
        "tfds:/etc",
    ],
)
def test_a_malformed_specification_is_a_configuration_error(spec):
    refused(CONFIGURATION, check_corpus, spec, "train", DataConfig())


def test_text_corpora_have_no_splits_of_their_own():
    config = DataConfig(corpus="text:a,b", valid="tsv:c")
    assert [split_spec(config, split) for split in ("train", "valid", "test")] == [
        "text:a,b",
        "tsv:c",
        "",
    ]
    assert read_split(config, "test") is None
    assert split_spec(DataConfig(), "test") == DataConfig().corpus


def test_a_prepared_data_set_is_read_in_the_order_of_its_supervised_keys(prepared):
    config = DataConfig(corpus="tfds:toy_translate", data_dir=prepared)
    corpus = read_split(config, "train")
    assert sorted(zip(corpus.source, corpus.target, strict=True)) == sorted(
        (f"word {i}", f"Wort {i}") for i in range(13)
    )
    assert corpus.where(4) == "tfds:toy_translate:train:5"
    assert len(read_split(config, "valid").source) == 7
    assert read_split(config, "test") is None
    assert read_corpus(config.corpus, "train", config) == corpus


def test_without_supervised_keys_the_features_are_in_alphabetical_order():
    """TFDS reads them from a map of protobuf, whose order differs between processes."""
    text = pytest.importorskip("tensorflow_datasets").features.Text()
    for names in ("ba", "ab"):
        info = SimpleNamespace(supervised_keys=None, features=dict.fromkeys(names, text))
        assert _languages(info, "tfds:toy") == ("a", "b")


def test_an_example_without_a_text_is_damage():
    """TFDS returns None for a text behind the end of a file that is cut off."""
    examples = mock.MagicMock(__len__=lambda self: 2)
    examples.__getitems__ = lambda numbers: [{"a": b"x", "b": b"y"}, {"a": b"x", "b": None}]
    builder = SimpleNamespace(as_data_source=lambda split: examples, data_path="toy")
    with pytest.raises(UserError, match="toy is damaged: an example has no text; delete") as caught:
        list(builder_blocks(builder, "train", ("a", "b"), "tfds:toy", {}))
    assert caught.value.code == DATA


def test_a_prepared_data_set_is_the_same_in_blocks_of_any_size(prepared, monkeypatch):
    config = DataConfig(corpus="tfds:toy_translate", data_dir=prepared)
    whole = read_split(config, "train")
    texts = zip(whole.source, whole.target, strict=True)
    sha256 = hashlib.sha256("".join(f"{en}\n{de}\n" for en, de in texts).encode()).hexdigest()
    assert whole.fingerprints == {"tfds:toy_translate:train": sha256}
    for read_at_once, lines, size in ((5, 3, 99), (3, 5, 99), (99, 99, 30)):
        monkeypatch.setattr("seq2seq.data.corpora.tfds.READ_AT_ONCE", read_at_once)
        monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_LINES", lines)
        monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_BYTES", size)
        assert read_split(config, "train") == whole


def test_a_text_that_is_too_long_is_dropped_from_a_prepared_data_set(prepared, monkeypatch):
    """No example is in a block as a whole if it is longer; its hash is that of all of it."""
    config = DataConfig(corpus="tfds:toy_translate", data_dir=prepared)
    hashes = read_split(config, "train").fingerprints
    for module in ("tfds", "collector"):
        monkeypatch.setattr(f"seq2seq.data.corpora.{module}.LONGEST", 6)
    corpus = read_split(config, "train")
    assert sorted(corpus.source) == [f"word {i}" for i in range(10)]
    assert list(corpus.counts.dropped.values()) == [3] and corpus.fingerprints == hashes
    monkeypatch.setattr("seq2seq.data.corpora.tfds.LONGEST", 3)
    (reader,) = open_parts(config.corpus, "train", config)
    assert {len(text) for block in reader.blocks() for side in block.columns for text in side} == {
        4
    }


def test_the_identity_of_a_data_set_is_that_of_its_files(prepared):
    config = DataConfig(data_dir=prepared)
    (train,), (valid,) = (
        open_parts("tfds:toy_translate", split, config) for split in ("train", "valid")
    )
    directory = Path(prepared) / "toy_translate/1.0.0"
    expected = {str(path): path.stat().st_size for path in directory.iterdir()}
    assert {path: size for path, size, _ in train.identity()["files"]} == expected
    assert train.num_bytes == sum(expected.values())
    assert train.identity() != valid.identity()
    assert train.names == ("tfds:toy_translate:train",) * 2


def test_a_named_split_is_the_only_one(prepared):
    config = DataConfig(corpus="tfds:toy_translate:validation", data_dir=prepared)
    assert len(read_split(config, "train").source) == 7
    assert read_split(config, "valid") is None


def test_the_error_of_an_unreadable_data_set_tells_the_command_to_run(prepared):
    config = DataConfig(data_dir=prepared)
    for spec, code, hint in (
        ("tfds:absent/de-en", DATA, "tfds build absent/de-en --file_format=array_record"),
        ("tfds:toy_translate:nowhere", DATA, "train, validation"),
        ("tfds:toy_many", CONFIGURATION, "tfds:toy_many/de-en"),
        ("tfds:toy_cut", DATA, "damaged; prepare it again"),
        ("tfds:toy_records", DATA, "--overwrite"),
    ):
        message = refused(code, check_corpus, spec, "train", config)
        assert hint in message
        assert prepared in message or "toy_" in message
    message = refused(DATA, read_corpus, "tfds:toy_numbers", "train", config)
    assert "not pairs of sentences" in message


def test_a_slice_of_a_split_has_its_examples_or_is_refused(prepared):
    """The train split has 13."""
    config = DataConfig(data_dir=prepared)
    for part, size in (("[:5]", 5), ("[10:]", 3), ("[-2:]", 2), ("[:100%]", 13)):
        spec = f"tfds:toy_translate:train{part}"
        assert len(read_corpus(spec, "train", config).source) == size
    for part in ("[:100000]", "[:0]", "[5]", "[5:2]", "[:200%]", "[]"):
        spec = f"tfds:toy_translate:train{part}"
        message = refused(CONFIGURATION, read_corpus, spec, "train", config)
        assert message.startswith(f"{spec} cannot be read: ") and "train[:50%]" in message


def test_a_damaged_data_set_is_one_line(prepared, tmp_path):
    def truncate(path):
        path.write_bytes(path.read_bytes()[:-9])

    for pattern, change in (
        ("toy_translate-train*", truncate),
        ("toy_translate-train*", Path.unlink),
        ("features.json", Path.unlink),
        ("features.json", lambda path: path.write_text("{")),
        ("dataset_info.json", lambda path: path.write_text("[]")),
        ("dataset_info.json", lambda path: path.write_text('{"splits": [{}]}')),
    ):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(Path(prepared) / "toy_translate", root / "toy_translate")
        directory = root / "toy_translate/1.0.0"
        (path,) = directory.glob(pattern)
        change(path)
        config = DataConfig(data_dir=str(root))
        message = refused(DATA, read_corpus, "tfds:toy_translate", "train", config)
        assert message.startswith(str(directory)) and " is damaged" in message
        assert "prepare it again" in message


def test_the_builtin_corpus_has_all_splits_in_korean_and_english(tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.data.korean.corpus.TRAIN_SIZE", 2_000)  # instead of 36,000
    for split in ("train", "valid", "test"):
        corpus = read_split(DataConfig(data_dir=str(tmp_path)), split)
        assert not corpus.counts.dropped
        assert all("가" <= max(text) <= "힣" for text in corpus.source)
        assert all(text.isascii() for text in corpus.target)
    (reader,) = open_parts("builtin:korean_english", "valid", DataConfig(data_dir=str(tmp_path)))
    assert reader.names == ("builtin:korean_english:validation",) * 2
    assert any(
        "korean_english-validation.array_record" in f for f, *_ in reader.identity()["files"]
    )


def test_the_checks_import_no_large_library():
    program = (
        "import sys; from seq2seq.data.corpora.registry import *\n"
        "try: check_corpus('tfds:absent', 'train', DataConfig())\n"
        "except UserError: print(*(set(sys.modules) & {'jax', 'tensorflow_datasets',"
        " 'tensorflow', 'sentencepiece', 'array_record'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


class Numbers(RawCorpus):
    """The kind of corpus of the next test: numbers:COUNT."""

    name, notation = "numbers", "numbers:COUNT"

    def blocks(self, split, config, hashes):
        yield from blocks_of((b"%d" % i, b"%d" % -i) for i in range(int(self.rest)))


def test_a_registered_kind_can_be_used(monkeypatch):
    monkeypatch.setitem(corpora.CORPUS_KINDS, "numbers", Numbers)
    config = DataConfig(corpus="2*numbers:3", reverse=True)
    corpus = read_split(config, "train")
    assert (corpus.source, corpus.target) == (["0", "-1", "-2"], ["0", "1", "2"])
    assert read_split(config, "valid") is None
    (reader,) = open_parts(config.corpus, "train", config)
    assert reader.identity() is None and reader.names == ("numbers:3", "numbers:3")
    assert "numbers:COUNT" in refused(CONFIGURATION, read_corpus, "numbers", "train", config)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("corpus", ""),
        ("on_bad_utf8", "ignore"),
        ("tokenizer", "letters"),
        ("vocab_size", 4),
        ("target_vocab_size", 997),
        ("target_tokenizer", "bpe"),
        ("source_length", 1),
        ("target_length", 0),
        ("max_length_ratio", 0.5),
    ],
)
def test_invalid_settings_are_refused_with_field_and_value(field, value):
    DataConfig().validate()
    with pytest.raises(ValueError, match=f"data.{field}") as error:
        DataConfig(**{field: value}).validate()
    message = str(error.value)
    assert repr(value) in message
