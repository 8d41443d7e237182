"""A word's vector depends on its context

Claim: self-attention computes a representation of the sequence (Vaswani et al. 2017, section 2), so
the vector of a word depends on the words around it, more so in higher layers, while it remains
closer to other occurrences of the word than to other words (Ethayarajh 2019).

Measurement: sentences of a subject, an object and a verb, as 나는 사과를 샀다. Each of several
objects occurs at the same position with several subjects and verbs. For the embedding and each
encoder layer of a trained model: the mean cosine distance between the occurrences of an object, and
between different objects in the same context; the share of occurrences whose verb is that of the
nearest mean vector of the other occurrences. The figure shows the occurrences of one object in each
layer, projected on their first two principal components. The control removes self-attention from
the encoder.

Rule, in each seed: the distance is 0 for embeddings and increases with each layer; in the last
layer it is smaller than that between different objects; there the verb is found at least twice as
often as by chance. Without self-attention the distance remains 0.

Remark: in these models the vector of an object changes little with its context, by a few percent
of the distance between objects; this suffices to find the verb.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.data.korean.grammar import Clause, Phrase, Sentence, korean
from seq2seq.data.korean.lexicon import PRONOUNS, Pronoun
from seq2seq.data.korean.predicates import UNRESTRICTED
from seq2seq.data.korean.speaker import nouns
from seq2seq.model.attention import MultiHeadAttention
from seq2seq.model.transformer import Layer
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.korean_model import KoreanTask, korean_task, spaced, trained_korean
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread
from seq2seq.scripts.experiments.small_model import (
    Arguments,
    Call,
    Options,
    Variant,
    is_call,
    padded,
)
from seq2seq.scripts.experiments.vectors import cosine_distance, found_share, projection

CLAIM = "A word's vector depends on its context."
ARMS = ("trained", "without self-attention")
OBJECTS, SUBJECTS, VERBS, PLACE = 6, 8, 6, 1  # the object is the second word


def measure(arm: str, seed: int, size: str) -> Result:
    """Distances and shares of found verbs over the layers, and projections of one object."""
    trained, known = trained_korean(size, seed), korean_task(size)
    texts, verbs = contexts(known)  # [objects, subjects × verbs], [verbs]
    ids, lengths = padded(
        known.source.encode_many(texts.ravel().tolist()), known.task.source_length
    )
    segments = jnp.asarray(np.arange(ids.shape[1]) < lengths[:, None], jnp.int32)
    model = trained.model if arm == "trained" else Variant(trained.model.config, without_attention)
    _, sown = jax.jit(
        lambda variables: model.apply(
            variables, jnp.asarray(ids), segments, method="encode", mutable="intermediates",
            capture_intermediates=lambda module, _: isinstance(module, Layer),
        )
    )(trained.variables)  # fmt: skip
    stack = sown["intermediates"]["encoder"]
    table = trained.params["source_embedding"]["table"]
    layers = [jnp.asarray(table)[ids]]
    layers += [stack[f"layers_{i}"]["__call__"][0][0] for i in range(model.config.num_layers)]
    vectors = [np.asarray(x)[:, PLACE].reshape(*texts.shape, -1) for x in layers]
    numbers = np.tile(np.arange(len(verbs)), texts.shape[1] // len(verbs))
    return {
        "same": [np.mean([cosine_distance(rows) for rows in x]) for x in vectors],
        "different": [
            np.mean([cosine_distance(x[:, c]) for c in range(x.shape[1])]) for x in vectors
        ],
        "verb": [np.mean([found_share(rows, numbers) for rows in x]) for x in vectors],
        "verbs": verbs,
        "projections": [projection(x[0]) for x in vectors],
        "word": texts[0, 0].split()[PLACE],
    }


def contexts(known: KoreanTask) -> tuple[np.ndarray, list[str]]:
    """Sentences [objects, subjects × verbs] of known words, and the English verbs."""

    def text(subject: Any, verb: Any, thing: Any) -> str:
        role = "topic" if isinstance(subject, Pronoun) else "subject"
        clause = Clause(verb, ((role, Phrase(subject)), ("object", Phrase(thing))))
        return spaced(korean(Sentence(clause)))

    things, subjects = nouns("food", "thing"), [*PRONOUNS[:2], *nouns("animal", "person")]
    verbs = [v for v in UNRESTRICTED if is_known(known, text(subjects[0], v, things[0]), 2)][:VERBS]
    subjects = [s for s in subjects if is_known(known, text(s, verbs[0], things[0]), 0)][:SUBJECTS]
    things = [t for t in things if is_known(known, text(subjects[0], verbs[0], t), 1)][:OBJECTS]
    rows = [[text(s, v, thing) for s in subjects for v in verbs] for thing in things]
    return np.array(rows), [v.en for v in verbs]


def is_known(known: KoreanTask, text: str, place: int) -> bool:
    return known.source.id_of(text.split()[place]) is not None


def without_attention(original: Call, arguments: Arguments, options: Options, context: Any) -> Any:
    """An interceptor: the output of self-attention is zero."""
    if is_call(context, MultiHeadAttention):
        return jnp.zeros_like(arguments[0])
    return original(*arguments, **options)


def judge(results: Results) -> list[Check]:
    def layer(name: str, arm: str = ARMS[0], place: int = -1) -> list[float]:
        return [result[name][place] for result in results[arm]]

    runs = results[ARMS[0]]
    chance = 1 / len(runs[0]["verbs"])
    without = float(max(np.abs(result["same"]).max() for result in results[ARMS[1]]))
    same = [spread(layer("same", place=place), 3) for place in range(1, len(runs[0]["same"]))]
    grows = all(abs(run["same"][0]) < 1e-5 and min(np.diff(run["same"])) > 1e-5 for run in runs)
    return [
        Check(
            f"occurrences of an object differ by {', '.join(same)} after the encoder layers",
            grows,
            f"occurrences of an object differ by {same[-1]}",
        ),
        Check(
            f"different objects in the same context differ by {spread(layer('different'))}",
            all(a < b for a, b in zip(layer("same"), layer("different"), strict=True)) and grows,
        ),
        Check(
            f"the verb is found from the object's vector in {spread(layer('verb'))} of the "
            f"sentences (chance: {chance:.2f})",
            min(layer("verb")) >= 2 * chance,
        ),
        Check(
            f"without self-attention occurrences differ by {without:.0e}", grows and without < 1e-5
        ),
    ]


def draw(results: Results) -> Any:
    runs = results[ARMS[0]]
    places = range(len(runs[0]["same"]))
    names = ["embedding", *(f"layer {i}" for i in places[1:])]
    figure, axes = panels("cosine distance over layers", *names, width=2.8)
    curve(axes[0], places, [run["same"] for run in runs], "same object, other context")
    curve(axes[0], places, [run["different"] for run in runs], "other object, same context")
    axes[0].set_xticks(places, names)
    axes[0].legend(fontsize=7)
    projections, verbs = np.array(runs[0]["projections"]), runs[0]["verbs"]  # [layers, n, 2]
    limit = 1.1 * np.abs(projections).max()  # one scale for all layers
    for axis, points in zip(axes[1:], projections, strict=True):
        for number, verb in enumerate(verbs):
            axis.plot(*points[number :: len(verbs)].T, "o", ms=4, label=verb)
        axis.set(xlim=(-limit, limit), ylim=(-limit, limit))
    axes[1].legend(fontsize=7, title="verb")
    return figure
