"""Generated tasks: sequences of symbols, whose targets are a function of the sources."""

from collections.abc import Callable

import numpy as np

from seq2seq.config.special_tokens import SPECIALS
from seq2seq.scripts.experiments.small_model import Sequences, Task


def sequence_task(
    rule: Callable[[list[int]], list[int]], symbols: int, lengths: range, capacity: int = 0
) -> Task:
    """Sources of uniform symbols 0 … symbols − 1 and of the given lengths; `rule` maps each source
    to its target of the same symbols. `capacity` is the padded length (default: the longest)."""

    def sample(random: np.random.Generator, count: int) -> tuple[Sequences, Sequences]:
        chosen = random.choice(np.array(lengths), count)
        sources = [random.integers(0, symbols, length).tolist() for length in chosen]
        targets = [rule(source) for source in sources]
        return shifted(sources), shifted(targets)

    size = (capacity or max(lengths)) + 1
    return Task(SPECIALS + symbols, size, size, sample)


def shifted(sequences: Sequences) -> Sequences:
    """Symbols as token ids, which follow the ids of the special tokens."""
    return [[SPECIALS + symbol for symbol in sequence] for sequence in sequences]


def excluding(task: Task, excluded: Sequences) -> Task:
    """The task without these sources: a training on it leaves them for a test."""
    left_out = set(map(tuple, excluded))

    def sample(random: np.random.Generator, count: int) -> tuple[Sequences, Sequences]:
        sources: Sequences = []
        targets: Sequences = []
        while len(sources) < count:
            for source, target in zip(*task.sample(random, count), strict=True):
                if tuple(source) not in left_out:
                    sources.append(source)
                    targets.append(target)
        return sources[:count], targets[:count]

    return task._replace(sample=sample)


def reversal(symbols: int = 16, lengths: range = range(4, 9)) -> Task:
    """The source in reverse order."""
    return sequence_task(lambda source: source[::-1], symbols, lengths)


def copying(symbols: int, lengths: range, capacity: int = 0) -> Task:
    """The source itself."""
    return sequence_task(list, symbols, lengths, capacity)
