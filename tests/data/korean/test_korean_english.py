"""The built-in corpus: its sentences and splits, and its storage in TFDS."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from seq2seq.data.korean import corpus as korean_english
from seq2seq.data.korean.corpus import (
    HELD_OUT_COMBINATIONS,
    MIN_COUNT,
    combinations,
    generate_corpus,
    prepare_korean_english,
)
from seq2seq.data.korean.english import english
from seq2seq.data.korean.grammar import Clause, Phrase, Sentence, korean
from seq2seq.data.korean.lexicon import PRONOUNS
from seq2seq.data.korean.predicates import BE, DATIVE, MOTION, TRANSITIVE
from seq2seq.data.korean.speaker import ALL, NOUN, Speaker
from seq2seq.data.korean.topics import random_sentence

ROOT = Path(__file__).parents[3]
VERBS = {verb.ko: verb for verb in (*TRANSITIVE, *DATIVE, *MOTION)}
ME, HE = PRONOUNS[0], PRONOUNS[3]


@pytest.fixture(scope="module")
def pairs_and_meanings():
    """The corpus, and Korean → meaning of each sentence that was sampled for it."""
    meanings = {}

    def recorded(sentence):
        ko = korean(sentence)
        meanings.setdefault(ko, sentence)
        return ko

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(korean_english, "korean", recorded)
        return generate_corpus(), meanings


@pytest.fixture(scope="module")
def pairs(pairs_and_meanings):
    return pairs_and_meanings[0]


@pytest.fixture(scope="module")
def meanings(pairs_and_meanings):
    return pairs_and_meanings[1]


def digest(pairs):
    return hashlib.sha256(repr(sorted(pairs.items())).encode()).hexdigest()


# Sentences


def test_both_orders_of_both_role_assignments_are_in_training(pairs):
    texts = " ".join(ko for ko, _ in pairs["train"])
    for pattern in (r"\b나는 \w+[을를] 먹었", r"\w+[이가은는] 나를 먹", r"\b나를 \w+[이가은는] "):
        assert re.search(pattern, texts)


def test_a_korean_sentence_has_one_english_sentence(pairs, meanings):
    meant = {}
    speaker = Speaker(101)
    for _ in range(5_000):
        sentence = random_sentence(speaker)
        ko, en = korean(sentence), english(sentence)
        assert meant.setdefault(ko, en) == en
    for ko, en in [pair for split in pairs.values() for pair in split]:
        assert meant.setdefault(ko, en) == en


def test_every_sentence_is_clean_text(pairs):
    for ko, en in [pair for split in pairs.values() for pair in split]:
        assert re.fullmatch(r"[가-힣]+( [가-힣]+)*[.?]", ko)
        assert re.fullmatch(r"[A-Z][A-Za-z']*(,? [A-Za-z']+)*[.?]", en)
        assert ko[-1] == en[-1]
        assert 2 <= len(ko.split()) <= 15 and 2 <= len(en.split()) <= 15


def test_no_english_sentence_has_a_wrong_article_or_agreement(pairs):
    text = "\n".join(en for split in pairs.values() for _, en in split)
    wrong = (
        r"\b[Aa] [aeiou]",
        r"\b[Aa]n [^aeiou]",
        r"\bI (is|are|were|has|does)\b",
        r"\b(You|We|They|you|we|they) (is|am|was|has|does)\b",
        r"(?m)^(He|She) (am|are|were|have|do)\b",
        r"\b(the|a|an) (the|a|an)\b",
        r"\bone (?!o'clock)\w+s\b(?<!bus)(?<!glass)(?<!ous)",
        r"\b(two|three|four) (apple|book|dog|child|mouse)\b",
        r"\b(do|does|did) (not )?\w+ed\b",
        r"\b(to|will|can|could|cannot) (not )?(is|are|was|were|has|had|went|ate|saw)\b",
    )
    for pattern in wrong:
        assert not re.search(pattern, text), re.search(f".*{pattern}.*", text).group()


# Splits


@pytest.mark.slow
def test_a_process_with_another_hash_seed_generates_the_same_corpus(monkeypatch):
    """Of 4,000 training pairs, which take less time."""
    monkeypatch.setattr(korean_english, "TRAIN_SIZE", 4000)
    program = (
        "import hashlib; from seq2seq.data.korean import corpus; corpus.TRAIN_SIZE = 4000; "
        "print(hashlib.sha256(repr(sorted(corpus.generate_corpus().items())).encode()).hexdigest())"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert process.stdout.split()[-1] == digest(generate_corpus())


def test_the_digest_of_the_corpus_matches_so_its_version_is_current(pairs):
    version = str(korean_english.KoreanEnglish.VERSION)
    assert korean_english.DIGEST == digest(pairs)[:16], (
        f"the corpus changed: increase version {version}"
    )


def test_the_splits_have_their_sizes_and_share_no_sentence(pairs):
    assert {split: len(texts) for split, texts in pairs.items()} == {
        "train": 36_000,
        "validation": 1_000,
        "test": 1_000,
    }
    sources = [ko for texts in pairs.values() for ko, _ in texts]
    assert len(set(sources)) == len(sources)


def test_each_held_out_word_occurs_in_training_often_enough(pairs):
    counts = Counter(word for pair in pairs["train"] for text in pair for word in text.split())
    for split in ("validation", "test"):
        for pair in pairs[split]:
            assert all(counts[word] >= MIN_COUNT for text in pair for word in text.split())


def test_held_out_combinations_are_in_half_of_their_split_and_in_no_other_split(pairs, meanings):
    shown = {
        split: [
            {HELD_OUT_COMBINATIONS.get(pair) for pair in combinations(meanings[ko])}
            for ko, _ in texts
        ]
        for split, texts in pairs.items()
    }
    assert not any({"validation", "test"} & splits for splits in shown["train"])
    for split, other_split in (("validation", "test"), ("test", "validation")):
        assert sum(split in splits for splits in shown[split]) == 500
        assert not any(other_split in splits for splits in shown[split])


def test_no_training_text_contains_a_held_out_combination(pairs):
    text = "\n".join(en for _, en in pairs["train"])
    for verb, noun in HELD_OUT_COMBINATIONS:
        verb, noun = VERBS[verb], NOUN[noun]
        words = [verb.past, verb.preposition, "the" if noun.plural else "", noun.en]
        phrase = " ".join(word for word in words if word)
        assert not [end for end in " .?," if f" {phrase}{end}" in text], phrase


def test_verbs_and_objects_of_held_out_combinations_occur_separately_in_training(pairs, meanings):
    seen = [pair for ko, _ in pairs["train"] for pair in combinations(meanings[ko])]
    verbs, nouns = (Counter(part) for part in zip(*seen, strict=True))
    for verb, noun in HELD_OUT_COMBINATIONS:
        assert verbs[verb] >= 30 and nouns[noun] >= 30


def test_combinations_are_found_in_every_clause():
    bread, rice, king = NOUN["빵"], NOUN["밥"], NOUN["왕"]
    bought = Clause(VERBS["사다"], (("subject", Phrase(ME)),))
    eaten = Phrase(bread, relative=bought)
    ate = Clause(VERBS["먹다"], (("topic", Phrase(HE)), ("object", eaten)))
    both = Clause(VERBS["팔다"], (("topic", Phrase(ME)), ("object", Phrase(bread, partner=rice))))
    cook = Phrase(king, relative=Clause(VERBS["요리하다"], (("object", Phrase(rice)),)))
    king_is = Clause(BE, (("topic", cook), ("complement", Phrase(NOUN["의사"]))))
    assert combinations(Sentence(ate)) == {("먹다", "빵"), ("사다", "빵")}
    assert combinations(Sentence(ate, before=both)) == {
        ("먹다", "빵"),
        ("사다", "빵"),
        ("팔다", "빵"),
        ("팔다", "밥"),
    }
    assert combinations(Sentence(king_is)) == {("요리하다", "밥")}


# TFDS


@pytest.mark.slow
def test_tfds_returns_the_generated_pairs(pairs, tmp_path, capfd, monkeypatch):
    pairs = {split: texts[:500] for split, texts in pairs.items()}
    monkeypatch.setattr(korean_english, "generate_corpus", lambda: pairs)
    builder = prepare_korean_english(tmp_path)
    assert capfd.readouterr().out == ""
    assert builder.info.features.keys() == {"ko", "en"}
    for split, texts in pairs.items():
        source = builder.as_data_source(split)
        examples = source.__getitems__(range(len(source)))
        assert {(example["ko"].decode(), example["en"].decode()) for example in examples} == set(
            texts
        )
        assert len(source) == len(texts)
    written = os.stat(builder.data_path / "dataset_info.json").st_mtime_ns
    again = prepare_korean_english(str(tmp_path))
    assert os.stat(again.data_path / "dataset_info.json").st_mtime_ns == written


def few_pairs(count):
    return {
        split: [(f"문장 {number}.", f"Sentence {number}.") for number in range(count)]
        for split in ("train", "validation", "test")
    }


def test_an_interrupted_preparation_is_not_read(tmp_path, monkeypatch):
    def interrupted(self, pairs):
        yield "one", {"ko": "하나.", "en": "One."}
        raise KeyboardInterrupt

    monkeypatch.setattr(korean_english, "generate_corpus", lambda: few_pairs(3))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(korean_english.KoreanEnglish, "_generate_examples", interrupted)
        prepare_korean_english(tmp_path)
    killed = tmp_path / "korean_english" / "incomplete.KILLED_1.0.0"
    killed.mkdir(parents=True)
    (killed / "dataset_info.json").write_text("{")
    assert len(prepare_korean_english(tmp_path).as_data_source("train")) == 3


def test_two_simultaneous_preparations_leave_one_complete_data_set(tmp_path, monkeypatch):
    def overtaken():
        monkeypatch.setattr(korean_english, "generate_corpus", lambda: few_pairs(3))
        prepare_korean_english(tmp_path)
        return few_pairs(3)

    monkeypatch.setattr(korean_english, "generate_corpus", overtaken)
    assert len(prepare_korean_english(tmp_path).as_data_source("train")) == 3
    assert [path.name for path in (tmp_path / "korean_english").iterdir()] == [
        str(korean_english.KoreanEnglish.VERSION)
    ]


def test_every_noun_of_the_lexicon_is_used(pairs):
    text = " ".join(ko for ko, _ in pairs["train"])
    assert all(noun.ko in text for noun in ALL)
