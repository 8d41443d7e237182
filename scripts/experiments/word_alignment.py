"""Cross-attention aligns words

Claim: the weights of the attention from the decoder to the encoder show which source words a target
word translates (Bahdanau et al. 2015, section 5.2.1, for the attention of an RNN). For Transformers
the heads of the second to last layer are averaged (Garg et al. 2019).

Measurement: the grammar of the built-in corpus supplies the alignment of new sentences: a word of
the meaning is replaced by a marker, which then appears at its places on both sides. For each
aligned target word: whether the source word of the largest weight is the aligned one, when the
target word is predicted. The source's end token is excluded, as by the mode align of decode.py. For
each layer and head, and for the mean over the heads that this mode uses.

Rule, in each seed: the best head agrees with at least 80 % of the pairs and the mode align with at
least 60 %; a model with random parameters remains below 40 % in all heads.

Remark: the second to last layer of these models is the first of two.
The mode align averages the heads of that layer, so it depends on how many of them align words.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.data.korean.speaker import Speaker
from seq2seq.data.korean.topics import random_sentence
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.search.scoring import GivenPairs, attended_tokens, score_targets
from seq2seq.scripts.experiments.figures import bars, panels
from seq2seq.scripts.experiments.grammar_alignment import aligned_words
from seq2seq.scripts.experiments.korean_model import (
    KoreanTask,
    korean_task,
    trained_korean,
    untrained_korean,
)
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values
from seq2seq.scripts.experiments.small_model import forced_pass, padded

CLAIM = "Cross-attention aligns words."
ARMS = ("trained", "untrained")
SENTENCES = {"tiny": 64, "full": 300}
SPEAKER_SEED = 1_000_000  # not that of the corpus


def measure(arm: str, seed: int, size: str) -> Result:
    """The agreement of each layer and head, and of the mode align, with the grammar."""
    known = korean_task(size)
    trained = (trained_korean if arm == "trained" else untrained_korean)(size, seed)
    pairs, links = new_sentences(known, SENTENCES[size], seed)
    encoded = known.encoded(pairs)
    _, weights = forced_pass(trained, known.task, *encoded)
    inputs = (
        *padded(encoded[0], known.task.source_length),
        *padded(encoded[1], known.task.target_length),
    )
    score = jax.jit(partial(run_score, trained.model))
    lengths = inputs[1]
    heads = [
        [agreement(np.asarray(head), lengths, links) for head in layer.swapaxes(0, 1)]
        for layer in weights.cross
    ]
    return {
        "heads": heads,
        "best": np.max(heads),
        "align": agreement(np.asarray(score(trained.variables, *inputs)), lengths, links),
        "links": sum(map(len, links)),
    }


def run_score(model: EncoderDecoder, variables: Any, *inputs: Any) -> Any:
    """The attention [B, T, S] of which the mode align takes the largest weight."""
    return score_targets([(model, variables)], GivenPairs(*inputs)).attention


def new_sentences(
    known: KoreanTask, count: int, seed: int
) -> tuple[list[tuple[str, str]], list[set[tuple[int, int]]]]:
    """GivenPairs of known words that are not in the training data, and their aligned tokens."""
    speaker, seen = Speaker(SPEAKER_SEED + seed), {source for source, _ in known.train}
    pairs: list[tuple[str, str]] = []
    links: list[set[tuple[int, int]]] = []
    while len(pairs) < count:
        source, target, aligned = aligned_words(random_sentence(speaker))
        if source not in seen and aligned and known.is_known((source, target)):
            pairs.append((source, target))
            links.append(aligned)
    return pairs, links


def agreement(weights: np.ndarray, lengths: np.ndarray, links: list[set[tuple[int, int]]]) -> float:
    """The share of pairs (source i, target j) whose target token j attends most to i. Weights
    [B, T, S]; the lengths include the end tokens."""
    chosen = np.asarray(attended_tokens(jnp.asarray(weights), jnp.asarray(lengths)))
    agreeing = [chosen[row, j] == i for row, pairs in enumerate(links) for i, j in pairs]
    return float(np.mean(agreeing))


def judge(results: Results) -> list[Check]:
    best, align = (values(results, "trained", name) for name in ("best", "align"))
    untrained = values(results, "untrained", "best")
    return [
        Check(
            f"the best head agrees with {spread(best)} of the grammar's pairs (untrained: "
            f"{spread(untrained)})",
            min(best) >= 0.8 and max(untrained) < 0.4,
            f"the best head agrees with {spread(best)} of the grammar's pairs",
        ),
        Check(
            f"the mean over the heads of the mode align agrees with {spread(align)}",
            min(align) >= 0.6 and max(untrained) < 0.4,
        ),
    ]


def draw(results: Results) -> Any:
    trained = np.array([result["heads"] for result in results["trained"]])  # [seeds, L, H]
    titles = [f"agreement, layer {layer + 1}" for layer in range(trained.shape[1])]
    figure, axes = panels(*titles, "mode align")
    for layer, axis in enumerate(axes[:-1]):
        heads = trained[:, layer].T
        bars(axis, [f"head {head + 1}" for head in range(len(heads))], heads)
    bars(axes[-1], ARMS, [values(results, arm, "align") for arm in ARMS])
    for axis in axes:
        axis.set_ylim(0, 1.05)
    return figure
