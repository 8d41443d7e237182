"""Beam search over a table of n-gram counts, without a neural network, checked exhaustively.

    python examples/ngrams.py
The table has the probability of a word after two others. A step gets the last word. The word before
it is the state of the step, which is reordered by `parents`.
"""

from itertools import pairwise, product

import jax.numpy as jnp
import numpy as np

from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import beam_search

WORDS = ["<s>", "</s>", "the", "a", "dog", "cat", "bird", "sees", "hears", "sleeps"]
START, END, BEAMS, LIMIT, ALPHA, NBEST = 0, 1, 6, 4, 0.6, 3


def toy_text(random: np.random.Generator, sentences: int) -> list[list[int]]:
    """Ids of: noun phrase + "sleeps", or noun phrase + "sees" or "hears" + noun phrase; end."""
    lines = []
    for _ in range(sentences):
        verb = random.choice(["sees", "hears", "sleeps"], p=[0.4, 0.1, 0.5])
        first, second = (
            [random.choice(["the", "a"]), random.choice(["dog", "cat", "bird"], p=[0.6, 0.3, 0.1])]
            for _ in range(2)
        )
        line = [*first, verb, *(second if verb != "sleeps" else [])]
        lines.append([*map(WORDS.index, line), END])
    return lines


def learn(text: list[list[int]]) -> np.ndarray:
    """ln p(word | two words before it), [before, last, word], from smoothed counts."""
    counts = np.full((len(WORDS),) * 3, 0.01)
    for sentence in text:
        ids = [START, START, *sentence]
        np.add.at(counts, (ids[:-2], ids[1:-1], ids[2:]), 1)
    return np.log(counts / counts.sum(axis=-1, keepdims=True))


def log_prob(table: np.ndarray, sentence: tuple[int, ...] | list[int]) -> float:
    """ln p of a sentence with its end."""
    contexts = pairwise([START, START, *sentence[:-1]])
    return sum(table[*context, word] for context, word in zip(contexts, sentence, strict=True))


def main() -> tuple[float, float, str]:
    """The perplexity of new sentences, the largest difference of the n best scores from those of
    exhaustive enumeration, and the best sentence."""
    random = np.random.default_rng(0)
    table, new = learn(toy_text(random, 2000)), toy_text(random, 500)
    perplexity = np.exp(-sum(log_prob(table, sentence) for sentence in new) / sum(map(len, new)))

    def step(tokens, before, t, parents, ancestry):
        before = jnp.take_along_axis(before, parents, axis=1)  # of the slot that each continues
        return jnp.asarray(table)[before, tokens], tokens

    targets = Targets(start_tokens=jnp.array([START]), limits=jnp.array([LIMIT]))
    options = SearchOptions(LIMIT, END, beam_size=BEAMS, nbest=NBEST, alpha=ALPHA)
    hypotheses = beam_search(step, jnp.full((1, BEAMS), START), targets, options)
    words = [START, *range(END + 1, len(WORDS))]
    every = [(*sentence, END) for n in range(LIMIT) for sentence in product(words, repeat=n)]
    scores = [log_prob(table, sentence) / ((5 + len(sentence)) / 6) ** ALPHA for sentence in every]
    difference = np.abs(np.sort(scores)[::-1][:NBEST] - hypotheses.scores[0]).max()
    best = hypotheses.tokens[0, 0, : hypotheses.lengths[0, 0] - 1]
    return float(perplexity), float(difference), " ".join(WORDS[i] for i in best)


if __name__ == "__main__":
    print("perplexity {:.2f} of 10 words; score difference {:.0e}; best: {}".format(*main()))
