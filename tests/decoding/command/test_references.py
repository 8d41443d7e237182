"""Scores of a job: references, metrics and a baseline."""

import pytest
from sacrebleu.tokenizers import tokenizer_ko_mecab

from seq2seq.data.metrics import METRICS, bleu, chrf
from seq2seq.decoding.command.references import read_references
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError

LINES = ["the cat sat on the mat", "a dog barked at the moon", "eight birds sang at dawn"]
TEXTS = ["the cat sat on a mat", "a dog barked at noon", "eight birds sang at dawn"]
BASELINE = ["a cat sat on a mat", "a dog barked", "birds sang at dawn"]


def file_of(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def reference(tmp_path):
    return file_of(tmp_path / "reference", LINES)


def test_the_default_metrics_are_cased_bleu_bleu_of_words_and_chrf(reference):
    scores = list(read_references(reference, None, "").results(TEXTS))
    assert [score.name for score in scores] == ["BLEU", "lower-cased tokenised BLEU", "chrF2"]
    assert scores[0] == bleu(TEXTS, LINES)


def test_metrics_are_computed_in_the_given_order(reference):
    scores = list(read_references(reference, "ter,chrf", "").results(TEXTS))
    assert [score.name for score in scores] == ["TER", "chrF2"]
    assert scores[1] == chrf(TEXTS, LINES)


def test_references_that_13a_does_not_split_are_a_warning(tmp_path, capsys):
    for lines, warnings in ((["你好，世界！"], 1), (LINES, 0)):
        read_references(file_of(tmp_path / "reference", lines), None, "")
        assert capsys.readouterr().err.count("warning: most letters") == warnings


def test_texts_that_look_equal_are_equal(tmp_path):
    """é as one character, as a run generates it, or as e and an accent, as on macOS."""
    composed, decomposed = ["Ein Café, 한국어"], ["Ein Cafe\u0301, \u1112\u1161\u11ab국어"]
    for texts, lines in ((composed, decomposed), (decomposed, composed)):
        reference = file_of(tmp_path / "reference", lines)
        (score,) = read_references(reference, "chrf", "").results(texts)
        assert score.value == 100


def test_rouge_stands_for_its_four_scores(reference):
    pytest.importorskip("rouge_score")
    for name in ("rouge", "rouge:unicode"):
        scores = list(read_references(reference, f"{name},chrf", "").results(TEXTS))
        names = ["ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum", "chrF2"]
        assert [score.name for score in scores] == names


def test_with_a_baseline_each_metric_is_a_comparison_with_it(reference, tmp_path):
    baseline = file_of(tmp_path / "baseline", BASELINE)
    names = ["bleu", "tokenized_bleu", "chrf", "ter", "bleu:char"]
    comparisons = list(read_references(reference, ",".join(names), baseline).results(TEXTS))
    metrics = [METRICS[name] for name in names]
    assert comparisons == [metric.compare(TEXTS, BASELINE, LINES) for metric in metrics]
    assert [comparison.output.value for comparison in comparisons] == [
        metric(TEXTS, LINES).value for metric in metrics
    ]
    assert "|tok:char|" in comparisons[-1].signature


def test_each_metric_has_several_references_of_each_text(reference, tmp_path):
    second = ["the cat sat on a mat", "dogs bark at noon", "birds sang"]
    names = f"{reference},{file_of(tmp_path / 'second', second)}"
    baseline = file_of(tmp_path / "baseline", BASELINE)
    kinds = ["bleu", "chrf", "chrf++", "ter", "exact"]
    scores = list(read_references(names, ",".join(kinds), "").results(TEXTS))
    assert scores == [METRICS[name](TEXTS, LINES, second) for name in kinds]
    assert all("nrefs:2|" in score.signature for score in scores)
    assert [score.value for score in scores if score.name == "exact match"] == [100 * 2 / 3]
    compared = list(read_references(names, ",".join(kinds), baseline).results(TEXTS))
    assert [comparison.output.value for comparison in compared] == pytest.approx(
        [score.value for score in scores]
    )
    assert compared[-1].baseline.value == 0
    short = file_of(tmp_path / "short", second[:2])
    with pytest.raises(
        UserError, match=f"{short} is not parallel to {reference}: .* 3 lines, got 2"
    ):
        read_references(f"{reference},{short}", None, "")


def test_without_translations_there_are_no_scores(tmp_path):
    empty = file_of(tmp_path / "empty", [])
    assert list(read_references(empty, None, empty).results([])) == []
    assert read_references("", None, "") is None


def test_a_metric_or_a_baseline_without_effect_is_refused(reference, tmp_path):
    unread = str(tmp_path / "unread")
    for metrics, baseline, message in (
        ("bleu", "", "--metric has no effect without --reference"),
        (None, unread, "--baseline has no effect without --reference; add --reference=FILE"),
        ("blue", "", "unknown metric 'blue': expected bleu, tokenized_bleu, chrf, chrf\\+\\+, ter"),
        ("bleu,", "", "unknown metric ''"),
        ("", "", "unknown metric ''"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            read_references("", metrics, baseline)
        assert caught.value.code == CONFIGURATION


def test_a_bleu_tokenizer_that_is_not_installed_is_refused(reference, monkeypatch):
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    with pytest.raises(UserError, match=r"ko-mecab is not installed: .*'sacrebleu\[ko\]'"):
        read_references(reference, "chrf,bleu:ko-mecab", "")


def test_files_that_are_not_parallel_are_refused(reference, tmp_path):
    short = file_of(tmp_path / "short", BASELINE[:2])
    with pytest.raises(UserError, match="--reference: expected 3 lines, got 2; give") as caught:
        read_references(reference, None, short)
    assert caught.value.code == DATA
    with pytest.raises(UserError, match="--input: expected 2 lines, got 3; .* not scored$"):
        list(read_references(reference, None, "").results(TEXTS[:2]))
