"""The built-in parallel corpus, Korean → English, as a TensorFlow Datasets (TFDS) builder.

Half of validation and test are new sentences of known parts; the other half hold a verb with an
object that training never shows together, so that only what was composed can be right. Every
word in them is in training at least `SEEN` times.
"""

import os
import sys
from collections import Counter
from contextlib import redirect_stdout

import tensorflow_datasets as tfds

from data.korean.english import english
from data.korean.grammar import Clause, Phrase, Sentence, korean
from data.korean.speaker import OBJECTS, Speaker
from data.korean.topics import random_sentence

SEED, TRAIN, HELD_OUT, SEEN = 1, 36_000, 1_000, 5
EVERY = 17  # of 17 combinations of verb and object one is for validation, one for test
FEW = 6  # objects, of which training needs all
WORDS = range(2, 16)  # in a sentence, on either side

DIGEST = "3b797843b8e251ae"  # of the corpus, so that a test notices when it changes

Pairs = list[tuple[str, str]]


def _held_out() -> dict[tuple[str, str], str]:
    """(verb, object) → the split that alone may show it; every verb keeps most of its objects."""
    combinations = [
        (verb.ko, noun.ko) for verb, nouns in OBJECTS.items() for noun in nouns if len(nouns) >= FEW
    ]
    return {
        **dict.fromkeys(combinations[3::EVERY], "validation"),
        **dict.fromkeys(combinations[11::EVERY], "test"),
    }


COMBINATIONS = _held_out()


def combinations(sentence: Sentence) -> set[tuple[str, str]]:
    """Every verb with its object, in relative clauses too: 내가 산 책 is 사다 with 책."""
    found: set[tuple[str, str]] = set()

    def visit(clause: Clause, head: Phrase | None = None) -> None:
        for role, argument in clause.arguments:
            if not isinstance(argument, Phrase):
                continue
            if role in ("object", "goal"):
                found.update(
                    (clause.predicate.ko, noun.ko)
                    for noun in (argument.noun, argument.partner)
                    if noun
                )
            if argument.relative:
                visit(argument.relative, argument)
        if head and any(role == "subject" for role, _ in clause.arguments):
            found.add((clause.predicate.ko, head.noun.ko))

    for clause in filter(None, (sentence.before, sentence.clause)):
        visit(clause)
    return found


def corpus() -> dict[str, Pairs]:
    """The pairs of "train", "validation" and "test", the same in every process."""
    speaker = Speaker(SEED)
    seen: set[str] = set()
    pairs: dict[str, Pairs] = {"train": [], "validation": [], "test": []}
    spare = 2 * HELD_OUT  # sentences of known combinations, from which held-out ones are taken
    while len(pairs["train"]) < TRAIN + spare:
        sentence = random_sentence(speaker)
        ko, en = korean(sentence), english(sentence)
        if ko in seen or len(ko.split()) not in WORDS or len(en.split()) not in WORDS:
            continue
        seen.add(ko)
        splits = {COMBINATIONS.get(pair, "train") for pair in combinations(sentence)} - {"train"}
        if len(splits) < 2:
            pairs[min(splits, default="train")].append((ko, en))
    known, train = pairs["train"][:spare], pairs["train"][spare:]
    counts = Counter(word for pair in train for text in pair for word in text.split())
    half = HELD_OUT // 2

    def covered(candidates: Pairs) -> Pairs:
        return [
            pair
            for pair in candidates
            if all(counts[word] >= SEEN for text in pair for word in text.split())
        ]

    return {
        "train": train,
        "validation": covered(known[::2])[:half] + covered(pairs["validation"])[:half],
        "test": covered(known[1::2])[:half] + covered(pairs["test"])[:half],
    }


class KoreanEnglish(tfds.core.GeneratorBasedBuilder):
    """Examples {"ko": bytes, "en": bytes}, which TFDS stores in the order of a hash."""

    VERSION = tfds.core.Version("1.1.0")  # bump it when DIGEST changes, or old data is reused

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Korean sentences with their English translations, made by a grammar.",
            features=tfds.features.Translation(languages=("ko", "en")),
            supervised_keys=("ko", "en"),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        return {split: self._generate_examples(pairs) for split, pairs in corpus().items()}

    def _generate_examples(self, pairs: Pairs):
        for ko, en in pairs:
            yield ko, {"ko": ko, "en": en}


def is_dataset(builder: tfds.core.DatasetBuilder) -> bool:
    return (builder.data_path / "dataset_info.json").exists()


def prepare_korean_english(data_dir: str | os.PathLike | None = None) -> tfds.core.DatasetBuilder:
    """The builder, prepared in `data_dir` (TFDS's own default if None) unless it is there already.

    TFDS writes to a temporary folder and renames it at the end, so what is interrupted is never
    read; of two processes that prepare at once the second finds the name taken and reads that.
    """
    builder = KoreanEnglish(data_dir=data_dir)
    if not is_dataset(builder):
        tfds.disable_progress_bar()
        try:
            with redirect_stdout(sys.stderr):  # stdout is for results
                builder.download_and_prepare(file_format="array_record")
        except OSError:
            if not is_dataset(builder):
                raise
    return KoreanEnglish(data_dir=data_dir)
