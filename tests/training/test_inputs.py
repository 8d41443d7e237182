"""The data of a run: mixtures, subword sampling and the reverse direction."""

import gc
import weakref
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from seq2seq import train
from seq2seq.data.batching.batches import DataPosition
from seq2seq.data.batching.order import EpochOrder
from seq2seq.data.corpora.registry import read_corpus
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.storage.run import Run
from seq2seq.training import inputs
from seq2seq.training.evaluate import held_out_loss
from seq2seq.training.inputs import open_corpora, training_batches
from seq2seq.training.loss import LossSums
from tests.support.tiny import tiny_config, write_corpus


@pytest.fixture
def config(tmp_path):
    """A mixture of 23 pairs twice and half of 31 pairs; some lines are too long."""
    specs = [write_corpus(tmp_path / f"{n}.tsv", n, seed=n) for n in (23, 31)]
    config = tiny_config(f"2*{specs[0]} + 0.5*{specs[1]}")
    config.data.source_length = config.data.target_length = 15
    config.data.tokenizer = "bpe"
    config.data.reverse = True
    return config


def prepared(config, path):
    run = Run(path)
    try:
        return train.prepare_data(config, run)[1]
    finally:
        run.close()


def test_corpora_that_cannot_be_read_leave_damaged_records_as_they_are(config, tmp_path):
    """A dry run opens the corpora too, and changes nothing."""
    run = Run(tmp_path / "run")
    (run.path / "run.json").write_text("{")
    run.resumed = True
    config.data.corpus = f"tsv:{tmp_path}/absent.tsv"
    with pytest.raises(UserError, match="absent.tsv") as refused:
        open_corpora(config, run)
    run.close()
    assert refused.value.code == DATA
    assert sorted(path.name for path in run.path.iterdir()) == ["LOCK", "run.json"]


def test_the_log_has_the_traceback_of_an_error_while_data_is_prepared(
    config, tmp_path, monkeypatch
):
    def fail(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(inputs, "open_corpora", fail)
    run = Run(tmp_path / "run")
    with pytest.raises(RuntimeError):
        train.prepare_data(config, run)
    run.close()
    log = (tmp_path / "run" / "train.log").read_text()
    assert "Traceback" in log and log.endswith("RuntimeError: a defect\n\n")


def epoch_pairs(config, data, epoch):
    """All pairs of an epoch in the order of training, as one window, and their indices."""
    seed = config.training.seed
    order = EpochOrder(data.train.parts, seed, epoch)
    index = order(np.arange(order.num_pairs))
    return data.train.select(index), index


def texts_of(side, tokenizer):
    return [tokenizer.decode(side.ids[i:j].tolist()) for i, j in pairwise(side.offsets)]


def test_an_epoch_has_the_pairs_of_the_mixture_by_weight(config, tmp_path):
    data = prepared(config, tmp_path / "run")
    corpus = read_corpus(config.data.corpus, "train", config.data)
    pairs = list(zip(corpus.source, corpus.target, strict=True))
    seen = Counter()
    for epoch in range(2):
        taken, _ = epoch_pairs(config, data, epoch)
        seen.update(zip(*map(texts_of, taken[:2], data.tokenizers), strict=True))
        assert max(max(side.lengths) for side in taken[:2]) <= 14
    log = (tmp_path / "run" / "train.log").read_text()
    kept = 54 - int(log.split(" dropped")[0].split()[-1])
    assert 31 < kept < 54
    possible = Counter(pairs[:23] * 4 + pairs[23:])
    assert seen <= possible
    assert all(count == possible[pair] for pair, count in seen.items())
    assert f"23.tsv: {sum(pair in seen for pair in pairs[:23])} pairs × 2" in log
    assert f"31.tsv: {sum(pair in seen for pair in pairs[23:])} pairs × 0.5" in log


def test_the_text_of_the_training_data_is_released_after_encoding(config, tmp_path, monkeypatch):
    references, read = [], inputs.open_corpora

    def watched(*arguments):
        corpora = read(*arguments)
        references.extend(weakref.ref(reader) for reader in corpora.train)
        return corpora

    monkeypatch.setattr(inputs, "open_corpora", watched)
    data = prepared(config, tmp_path / "run")
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    pairs, index = epoch_pairs(config, data, 0)
    texts = texts_of(pairs.source, data.tokenizers[0])
    for text, place in zip(texts, data.train.locate(index), strict=True):
        path, _, number = place.rpartition(":")
        line = Path(path).read_text(encoding="utf-8").split("\n")[int(number) - 1]
        assert line.split("\t")[1] == text  # the corpus is reversed


def test_training_pairs_have_the_pieces_of_the_tokenizer(config, tmp_path):
    data = prepared(config, tmp_path / "run")
    for side, tokenizer in zip(epoch_pairs(config, data, 1)[0][:2], data.tokenizers, strict=True):
        pieces = [side.ids[i:j].tolist() for i, j in pairwise(side.offsets)]
        assert pieces == tokenizer.encode_many(texts_of(side, tokenizer))


def test_held_out_sets_are_encoded_and_reported_by_name(config, tmp_path):
    news, web = (write_corpus(tmp_path / f"{n}.tsv", n, seed=n) for n in (7, 5))
    config.data.valid, config.data.test = f"news={news}; web={web}", f"web={web}"
    config.data.source_length = config.data.target_length = 32
    data = prepared(config, tmp_path / "run")
    assert list(data.valid) == ["news", "web"] and list(data.test) == ["web"]
    for (corpus, pairs), spec in zip(data.valid.values(), (news, web), strict=True):
        expected = read_corpus(spec, "valid", config.data)
        assert corpus == expected
        for side, texts, tokenizer in zip(pairs[:2], expected[:2], data.tokenizers, strict=True):
            assert texts_of(side, tokenizer) == texts
    assert list(data.files["valid"]) == [spec.removeprefix("tsv:") for spec in (news, web)]
    assert data.files["test"].items() <= data.files["valid"].items()
    log = (tmp_path / "run" / "train.log").read_text().splitlines()
    for line in ("valid news: 7 pairs kept, 0 dropped", "valid web: 5 pairs kept, 0 dropped",
                 "valid: news decides which checkpoint is the best",
                 "test web: 5 pairs kept, 0 dropped"):  # fmt: skip
        assert line in log


def test_the_validation_sets_are_the_test_sets_if_there_are_no_others(config, tmp_path):
    data = prepared(config, tmp_path / "none")
    assert (data.valid, data.test, list(data.files)) == ({}, {}, ["train"])
    assert "\nvalid: no data, so no step is" in (tmp_path / "none" / "train.log").read_text()
    config.data.valid = write_corpus(tmp_path / "7.tsv", 7)
    data = prepared(config, tmp_path / "run")
    assert data.test == {"": data.valid[""][0]}
    log = (tmp_path / "run" / "train.log").read_text()
    assert "\nvalid: 5 pairs kept, 2 dropped" in log
    assert "decides" not in log and "no data" not in log and "\ntest" not in log


def test_a_malformed_list_is_refused_before_the_training_data_is_read(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr("seq2seq.training.inputs.read_corpus", None)
    config.data.valid = f"a={config.data.corpus}; a={config.data.corpus}"
    with pytest.raises(UserError, match="two corpora 'a'"):
        prepared(config, tmp_path / "run")


def test_the_log_has_the_counts_of_dropped_pairs_and_the_range_of_loss_weights(tmp_path):
    path = tmp_path / "pairs.tsv"
    rows = ["eins\tONE\t0.5", "eins\tONE\t7", "zwei", "zwei\tTWO\t3", "eins\tONE\t1", "\tx\t9"]
    path.write_text("\n".join(rows))
    config = tiny_config(f"weighted_tsv:{path}")
    config.data.deduplicate, config.data.on_bad_line = True, "skip"
    data = prepared(config, tmp_path / "run")
    log = (tmp_path / "run" / "train.log").read_text()
    counts = "1 wrong number of columns, 1 blank, 2 duplicate"
    assert f"train: 2 pairs kept, 4 dropped ({counts})" in log
    assert f"  duplicate: {path}:2, {path}:5\n" in log  # all of them
    assert "  loss weights: 0.5 to 3\n" in log
    path.write_text("\n".join(rows + rows[:1] * 4))
    prepared(config, tmp_path / "more")
    log = (tmp_path / "more" / "train.log").read_text()
    assert f"  duplicate: {path}:2, {path}:5, {path}:7, {path}:8, {path}:9, …\n" in log
    assert data.train.select(np.arange(2)).loss_weights.tolist() == [0.5, 3.0]


@pytest.mark.parametrize("count, more", [(2, ""), (5, ""), (6, ", …")])
def test_the_log_has_the_places_of_replaced_bytes(tmp_path, count, more):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"eins\tONE\n" + b"zw\xffei\tTWO\n" * count)
    config = tiny_config(f"tsv:{path}")
    config.data.on_bad_utf8 = "replace"
    prepared(config, tmp_path / "run")
    log = (tmp_path / "run" / "train.log").read_text()
    assert f"{1 + count} pairs kept, 0 dropped, {count} lines with replaced bytes\n" in log
    places = ", ".join(f"{path}:{line}" for line in range(2, 2 + min(count, 5)))
    assert f"  replaced bytes that are not UTF-8: {places}{more}\n" in log


def test_a_run_that_is_resumed_in_another_directory_names_its_own(tmp_path, monkeypatch):
    """Relative paths of corpora are those of the current directory."""
    write_corpus(tmp_path / "pairs.tsv", 5)
    config, run = tiny_config("tsv:pairs.tsv"), Run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    try:
        inputs.open_corpora(config, run)
        run.check_and_record(config, {})
        for resumed, expected in ((True, f"run was started in {tmp_path}$"), (False, "directory$")):
            monkeypatch.chdir(tmp_path / "run")
            run.resumed = resumed
            with pytest.raises(UserError, match=f"pairs.tsv .* does not exist.*{expected}") as lost:
                inputs.open_corpora(config, run)
            assert lost.value.code == DATA
    finally:
        run.close()


def test_batches_of_training_and_of_held_out_pairs_have_the_tokens_around_texts(tmp_path):
    """Each source ends with its end token and a language, each target begins with a piece."""
    spec = write_corpus(tmp_path / "a.tsv", 20)
    data = dict(
        user_defined=">>a<< >>b<<",
        source_begin="<s>",
        source_end="{source}",
        target_begin="{target}",
        target_start="{source}",
        source_language=">>a<<",
        target_language=">>b<<",
    )
    fields = {f"data__{name}": value for name, value in data.items()}
    with closing(Run(tmp_path / "run")) as run:
        config = tiny_config(spec, spec, **fields)
        config, prepared_data = train.prepare_data(config, run)
    source, target = (prepared_data.tokenizers[0].id_of(piece) for piece in (">>a<<", ">>b<<"))
    evaluated = []

    def eval_step(params, rows):
        evaluated.append(type(rows)(*(x if x is None else x[0] for x in rows)))
        return LossSums(*map(np.float32, (1.0, 1.0, 1.0, 1.0)))

    held_out_loss(eval_step, None, prepared_data.valid[""][1], config)
    batches = training_batches(config, prepared_data)
    trained = batches[DataPosition()]
    batches.close()
    for batch in (trained, *evaluated):
        rows, pairs = len(batch.source), 0
        for row in range(rows):
            for segment in range(1, batch.source_segments[row].max() + 1):
                tokens, labels, inputs = (
                    array[row][segments[row] == segment].tolist()
                    for array, segments in (
                        (batch.source, batch.source_segments),
                        (batch.labels, batch.target_segments),
                        (batch.decoder_input, batch.target_segments),
                    )
                )
                assert tokens[0] == 1 and tokens[-2:] == [2, source] and 2 not in tokens[:-2]
                assert (labels[0], labels[-1]) == (target, 2)
                assert inputs == [source, *labels[:-1]]
                pairs += 1
        assert pairs
