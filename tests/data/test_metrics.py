"""Scores: names and signatures, and BLEU compared with a plain implementation."""

import importlib
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from seq2seq.data.metrics import (
    METRICS,
    ROUGE,
    bleu,
    chrf,
    exact,
    ter,
    tokenized_bleu,
    tokenizer_hint,
)
from seq2seq.runtime.errors import CONFIGURATION, UserError

TEXTS = ["the cat sat on the mat today .", "a dog barks at the big moon now ."]
REFERENCES = ["The cat sat on the mat .", "A dog barked at the big moon ."]


def counted_bleu(texts, references):
    """Equation of Papineni et al. 2002, for texts that share n-grams of every order."""
    log_precision, lengths = 0.0, np.zeros(2)
    for n in range(1, 5):
        matched = total = 0
        for text, reference in zip(texts, references, strict=True):
            grams = [
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (text.split(), reference.split())
            ]
            matched += sum((grams[0] & grams[1]).values())
            total += sum(grams[0].values())
        log_precision += math.log(matched / total) / 4
    for text, reference in zip(texts, references, strict=True):
        lengths += len(text.split()), len(reference.split())
    return 100 * math.exp(log_precision + min(0.0, 1 - lengths[1] / lengths[0]))


def test_tokenized_bleu_is_bleu_of_lower_cased_words():
    expected = counted_bleu(TEXTS, [r.lower() for r in REFERENCES])
    score = tokenized_bleu(TEXTS, REFERENCES)
    assert score.value == pytest.approx(expected, rel=1e-6)
    assert "case:lc" in score.signature and "tok:none" in score.signature


def test_the_scales_differ_and_are_named_in_the_signature():
    cased = bleu(TEXTS, REFERENCES)
    assert "case:mixed" in cased.signature and "tok:13a" in cased.signature
    assert cased.value < tokenized_bleu(TEXTS, REFERENCES).value
    assert str(cased).startswith("BLEU ") and cased.signature in str(cased)


def test_bleu_by_tokenizer_is_bleu_of_its_tokens():
    for name, tokens in (("none", " ".join), ("char", lambda words: " ".join("".join(words)))):
        texts, references = (
            [tokens(line.split()) for line in side] for side in (TEXTS, REFERENCES)
        )
        score = METRICS[f"bleu:{name}"](TEXTS, REFERENCES)
        assert score.value == pytest.approx(counted_bleu(texts, references), rel=1e-6)
        assert f"case:mixed|eff:no|tok:{name}|" in score.signature
    chinese, output = ["我们昨天去了图书馆"], ["我们昨天去了公园"]
    assert bleu(output, chinese).value == 0.0
    expected = counted_bleu([" ".join(output[0])], [" ".join(chinese[0])])
    assert METRICS["bleu:zh"](output, chinese).value == pytest.approx(expected, rel=1e-6)
    assert METRICS["bleu:13a"](TEXTS, REFERENCES) == bleu(TEXTS, REFERENCES)


def test_a_tokenizer_whose_packages_are_missing_is_one_line(monkeypatch):
    for language, name in (("ja", "ja-mecab"), ("ko", "ko-mecab")):
        module = importlib.import_module(f"sacrebleu.tokenizers.tokenizer_{language}_mecab")
        monkeypatch.setattr(module, "MeCab", None)
        with pytest.raises(UserError, match=f"tokenizer {name} is not installed: .*; pip") as error:
            METRICS[f"bleu:{name}"].check()
        assert error.value.code == CONFIGURATION and f"sacrebleu[{language}]" in str(error.value)


def test_perfect_translations_score_100():
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert exact(REFERENCES, REFERENCES).value == 100
    assert exact([REFERENCES[0], "x"], REFERENCES).value == 50


def test_cased_bleu_and_chrf_distinguish_text_and_reference():
    """Spaces separate all tokens, so the 13a tokenizer splits at spaces only."""
    short = [" ".join(reference.split()[:-2]) for reference in REFERENCES]
    expected = counted_bleu(short, REFERENCES)
    assert bleu(short, REFERENCES).value == pytest.approx(expected, rel=1e-6)
    assert counted_bleu(REFERENCES, short) != pytest.approx(expected, rel=1e-3)
    # chrF2 weighs recall twice as much as precision: omissions cost more than additions.
    assert chrf(short, REFERENCES).value < chrf(REFERENCES, short).value - 1


def test_ter_is_the_share_of_substituted_words_where_nothing_can_be_shifted():
    reference, text = "Der Hund bellt laut heute Nacht .", "der Hund schläft laut jetzt Nacht ."
    assert ter([text], [reference]).value == pytest.approx(100 * 2 / 7)
    assert "case:lc" in ter([text], [reference]).signature


def test_rouge_is_the_mean_f1_that_is_counted_by_hand():
    """Of texts with 5 of 6 words, 3 of 5 bigrams; and 4 of 5, 2 of 4, in another order of two
    sentences, so that the longest common subsequence has 2 words, and 2 and 2 by sentence."""
    pytest.importorskip("rouge_score")
    texts = ["The cat sat on the mat.", "Dogs barked. Cats sleep"]
    references = ["The cat lay on the mat", "Cats sleep! A dog barks"]
    scores = {metric(texts, references).name: metric for metric in ROUGE["rouge"]}
    expected = {  # 2 · matches / (words of the text + words of the reference)
        "ROUGE-1": (5 / 6, 2 * 4 / (4 + 5)), "ROUGE-2": (3 / 5, 2 * 2 / (3 + 4)),
        "ROUGE-L": (5 / 6, 2 * 2 / (4 + 5)), "ROUGE-Lsum": (5 / 6, 2 * 4 / (4 + 5)),
    }  # fmt: skip
    assert list(scores) == list(expected)
    for name, metric in scores.items():
        score = metric(texts, references)
        assert score.value == pytest.approx(100 * sum(expected[name]) / 2), name
        assert "|tok:ascii|stemmer:yes|" in score.signature and "rouge-score-" in score.signature
        assert ("sentences:punctuation" in score.signature) == (name == "ROUGE-Lsum")
    lines = "Dogs barked.<n>Cats sleep", "Cats sleep <n> A dog barks"
    assert [metric([lines[0]], [lines[1]]).value for metric in scores.values()] == [
        metric(texts[1:], references[1:]).value for metric in scores.values()
    ]
    comparison = scores["ROUGE-L"].compare(texts, references, references)
    assert (comparison.name, comparison.baseline.value) == ("ROUGE-L", pytest.approx(100))
    assert comparison.output.value == scores["ROUGE-L"](texts, references).value
    assert "bs:1000" in comparison.signature


def test_the_words_of_rouge_are_those_of_english_or_of_all_scripts():
    pytest.importorskip("rouge_score")
    text, reference = "개가 크게 짖는다。Größer!", "개가 짖는다。 größer हिन्दी"
    english, unicode = (ROUGE[name][0]([text], [reference]) for name in ("rouge", "rouge:unicode"))
    assert english.value == pytest.approx(100)  # "gr" and "er" alone
    assert unicode.value == pytest.approx(100 * 2 * 3 / (4 + 4))
    assert "|tok:unicode|stemmer:no|" in unicode.signature
    assert ROUGE["rouge"][0](["개가"], ["개가"]).value == 0


def test_rouge_without_its_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    monkeypatch.delitem(sys.modules, "seq2seq.data.rouge", raising=False)
    with pytest.raises(UserError, match=r"not installed: .* rouge-score; .*'.\[rouge\]'") as error:
        ROUGE["rouge"][0].check()
    assert error.value.code == CONFIGURATION


@pytest.fixture(scope="module")
def outputs():
    """References, and two outputs with different shares of other words in any order."""
    choose = random.Random(0)
    words = [f"word{i}" for i in range(40)]
    references = [choose.choices(words, k=choose.randint(5, 12)) for _ in range(60)]

    def output(share):
        return [
            " ".join(choose.choice(words) if choose.random() < share else word for word in line)
            for line in references
        ]

    return [" ".join(line) for line in references], output(0.3), output(0.27)


def test_a_comparison_equals_that_of_the_command_line_of_sacrebleu(outputs, tmp_path):
    """Scores, means, intervals, p-values and signatures, with its default seed and resamples."""
    names = [str(tmp_path / name) for name in ("references", "baseline", "output")]
    for name, lines in zip(names, outputs, strict=True):
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    command = [sys.executable, "-m", "sacrebleu", names[0], "-i", *names[1:], "--paired-bs"]
    options = ["-m", "bleu", "chrf", "ter", "--format=text", "-w", "4"]  # JSON fails for TER
    done = subprocess.run(command + options, capture_output=True, text=True, check=True).stdout
    first, second, p_values = [
        re.findall(r"\d+\.\d+", line) for line in done.split("\n") if "│" in line and "0" in line
    ]
    references, baseline, output = outputs
    for i, name in enumerate(("bleu", "chrf", "ter")):
        comparison = METRICS[name].compare(output, baseline, references)
        assert f" {comparison.signature}\n" in done and "|seed:12345|" in comparison.signature
        for score, expected in ((comparison.baseline, first), (comparison.output, second)):
            assert [f"{value:.4f}" for value in score] == expected[3 * i : 3 * i + 3]
        assert f"{comparison.p_value:.4f}" == p_values[i] != "0.0010"


def test_scores_with_several_references_equal_those_of_the_command_line_of_sacrebleu(
    outputs, tmp_path
):
    first, second, output = outputs
    second = ["", *second[1:]]
    names = [str(tmp_path / name) for name in ("first", "second", "output")]
    for name, lines in zip(names, (first, second, output), strict=True):
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    command = [sys.executable, "-m", "sacrebleu", *names[:2], "-i", names[2]]
    options = ["-m", "bleu", "chrf", "ter", "--chrf-word-order=2", "-w", "9"]
    done = subprocess.run(command + options, capture_output=True, text=True, check=True).stdout
    expected = json.loads(done)
    for name, score in zip(("bleu", "chrf++", "ter"), expected, strict=True):
        ours = METRICS[name](output, first, second)
        assert (ours.name, ours.value) == (score["name"], pytest.approx(score["score"], abs=1e-8))
        assert ours.signature.startswith("nrefs:2|") and ours.signature == score["signature"]
        assert ours.value != METRICS[name](output, first).value


def test_rouge_takes_the_best_reference_of_each_line():
    pytest.importorskip("rouge_score")
    metric = ROUGE["rouge"][0]
    score = metric(["a b c", "x y"], ["a b c", "z"], ["q", "x z"])
    assert score.value == pytest.approx(100 * (1 + 2 / 4) / 2)


def test_a_comparison_is_a_table_with_both_scores_and_the_p_value(outputs):
    references, baseline, output = outputs
    comparison = tokenized_bleu.compare(output, baseline, references)
    title, heading, first, second = str(comparison).split("\n")
    assert title == f"lower-cased tokenised BLEU ({comparison.signature})" and "tok:none" in title
    assert heading.split() == ["score", "95", "%", "interval", "p-value"]
    expected = [tokenized_bleu(texts, references).value for texts in (baseline, output)]
    assert [line.split()[:2] for line in (first, second)] == [
        ["baseline", f"{expected[0]:.2f}"],
        ["output", f"{expected[1]:.2f}"],
    ]
    assert len(first.split()) + 1 == len(second.split()) == 6
    assert float(second.split()[-1]) == pytest.approx(comparison.p_value, abs=1e-4)
    assert len(heading) == len(second)


def test_a_hint_names_a_tokenizer_for_references_in_a_script_that_13a_does_not_split():
    chosen, other = [chrf, bleu], [chrf, METRICS["bleu:char"], tokenized_bleu]
    for references, expected in (
        (["你好，世界！（三）", "GPU 很好"], "Chinese.* expected bleu:zh, or chrf"),
        (["新聞を読みました。", "東京"], "Japanese.* expected bleu:ja-mecab or bleu:char"),
        (["신문을 읽었다 .", "ok"], "Korean.* expected bleu:ko-mecab"),
        (["สวัสดี"], "Thai.* expected bleu:char"),
    ):
        assert re.search(expected, tokenizer_hint(chosen, references))
        assert tokenizer_hint(other, references) == ""
    for references in (REFERENCES, ["Привет мир", "مرحبا"], ["3 , 4 !"], [], ["ab你", "c"]):
        assert tokenizer_hint(chosen, references) == ""
