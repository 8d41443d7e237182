"""Without positions word order is lost

Claim: the model contains no recurrence and no convolution; to use the order of the sequence it
needs positional encodings (Vaswani et al. 2017, section 3.5).

Measurement: Korean → English sentences of a subject, an object and a verb from the grammar of the
built-in corpus. Particles mark the roles: 나는 밥을 먹었다 is *I ate rice*, 밥이 나를 먹었다 is
*rice ate me*. With hidden particles (나 밥 먹었다) the roles follow from the order alone. The test
contains unseen combinations of two nouns and a verb, each in both orders.

Rule, in each seed: with hidden particles at least 90 % of the translations are correct with
sinusoidal positions, and at most 60 % without positions; with visible particles at least 90 % are
correct without positions.

Remark: the limit of 60 % is a check of the experiment, not of the claim. Without positions both
orders of a pair have the same tokens and therefore the same translation, so at most 50 % can be
correct after any training.
"""

from functools import cache
from typing import Any

import numpy as np

from seq2seq.data.korean.english import english
from seq2seq.data.korean.grammar import Clause, Phrase, Sentence, korean
from seq2seq.data.korean.lexicon import PRONOUNS, Pronoun
from seq2seq.data.korean.predicates import UNRESTRICTED
from seq2seq.data.korean.speaker import nouns
from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments.figures import bars, curve, panels, smoothed
from seq2seq.scripts.experiments.korean_model import word_tokenizer
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values
from seq2seq.scripts.experiments.small_model import (
    Sequences,
    Task,
    best_hypotheses,
    exact_share,
    small_config,
    small_training,
    train_model,
)

CLAIM = "Without positions word order is lost."
ARMS = ("sinusoidal, hidden", "none, hidden", "none, visible")
STEPS = {"tiny": 250, "full": 600}
KINDS = {"tiny": ("animal", "food"), "full": ("animal", "food", "person", "thing")}
EXAMPLE = ("먹다", "나", "밥")
EVERY = 10  # one of ten combinations is for the test


class Corpus:
    """All sentences of two different nouns and a verb, as texts and as token ids."""

    def __init__(self, size: str, visible: bool):
        self.train: list[tuple[str, str]] = []
        self.test: list[tuple[str, str]] = []
        things: list[Any] = [*PRONOUNS[:1], *nouns(*KINDS[size])]
        number = 0
        for verb in UNRESTRICTED[: 4 if size == "tiny" else None]:
            for i, thing in enumerate(things):
                for other in things[:i]:
                    number += 1
                    pair = [
                        sentence(verb, *both, visible) for both in ((thing, other), (other, thing))
                    ]
                    example = (verb.ko, other.ko, thing.ko) == EXAMPLE
                    (self.test if number % EVERY == 0 or example else self.train).extend(pair)
        self.tokenizer = word_tokenizer([t for pair in self.train + self.test for t in pair])

    def encoded(self, pairs: list[tuple[str, str]]) -> tuple[Sequences, Sequences]:
        sources, targets = zip(*pairs, strict=True)
        return self.tokenizer.encode_many(sources), self.tokenizer.encode_many(targets)

    def task(self) -> Task:
        sources, targets = self.encoded(self.train)

        def sample(random: np.random.Generator, count: int) -> tuple[Sequences, Sequences]:
            chosen = random.integers(0, len(sources), count)
            return [sources[i] for i in chosen], [targets[i] for i in chosen]

        longest_source, longest_target = (max(map(len, side)) for side in (sources, targets))
        return Task(self.tokenizer.size, longest_source + 1, longest_target + 1, sample)


def sentence(verb: Any, agent: Any, patient: Any, visible: bool) -> tuple[str, str]:
    """The Korean and the English sentence, with visible or hidden particles."""
    role = "topic" if isinstance(agent, Pronoun) else "subject"
    meaning = Sentence(Clause(verb, ((role, Phrase(agent)), ("object", Phrase(patient)))))
    text = korean(meaning).removesuffix(".")
    if not visible:
        text = f"{agent.ko} {patient.ko} {text.rpartition(' ')[2]}"
    return text, english(meaning).removesuffix(".").lower()


corpus_of = cache(Corpus)


def measure(arm: str, seed: int, size: str) -> Result:
    """The losses, the share of correct translations, and the translations of the two examples."""
    positions, particles = arm.split(", ")
    corpus = corpus_of(size, particles == "visible")
    task = corpus.task()
    model = Transformer(small_config(task, d_model=64, positions=positions))
    trained = train_model(model, task, small_training(seed, STEPS[size]), rows=128)
    random = np.random.default_rng(seed)
    chosen = random.choice(len(corpus.test) // 2, min(256, len(corpus.test) // 2), replace=False)
    pairs = [corpus.test[i] for k in chosen for i in (2 * k, 2 * k + 1)]
    (verb,) = (verb for verb in UNRESTRICTED if verb.ko == EXAMPLE[0])
    words: list[Any] = [*PRONOUNS, *nouns("food")]
    first, second = (word for word in words if word.ko in EXAMPLE)
    orders = (first, second), (second, first)
    examples = [sentence(verb, *order, particles == "visible") for order in orders]
    outputs, _ = best_hypotheses(trained, task, corpus.encoded(examples)[0])
    return {
        "losses": smoothed(trained.losses),
        "correct": exact_share(trained, task, *corpus.encoded(pairs)),
        "examples": {ko: corpus.tokenizer.decode(ids) for (ko, _), ids in zip(examples, outputs,
                                                                              strict=True)},
    }  # fmt: skip


def judge(results: Results) -> list[Check]:
    correct = {arm: values(results, arm, "correct") for arm in ARMS}
    with_order, without, visible = correct.values()
    said = {arm: "; ".join(f"{a} → {b}" for a, b in results[arm][0]["examples"].items())
            for arm in ARMS}  # fmt: skip
    return [
        Check(
            f"with hidden particles {spread(with_order)} are correct with sinusoidal positions "
            f"({said[ARMS[0]]}) and {spread(without)} without positions ({said[ARMS[1]]})",
            min(with_order) >= 0.9 and max(without) <= 0.6,
            f"{spread(without)} of the translations correct without positions",
        ),
        Check(
            f"with visible particles {spread(visible)} are correct without positions "
            f"({said[ARMS[2]]})",
            min(visible) >= 0.9,
        ),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("training loss", "correct translations")
    for arm in ARMS:
        losses = [result["losses"] for result in results[arm]]
        curve(axes[0], np.linspace(0, 1, len(losses[0])), losses, arm)
    axes[0].set_xlabel("share of the training")
    axes[0].legend()
    bars(axes[1], [arm.replace(", ", ",\n") for arm in ARMS],
         [values(results, arm, "correct") for arm in ARMS])  # fmt: skip
    return figure
