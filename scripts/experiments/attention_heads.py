"""One attention head and eight

Claim: several heads attend to different positions, which averaging in one head inhibits (Vaswani et
al. 2017, section 3.2.2); different heads learn different tasks (section 4, Attention
visualisations). Of trained heads many can be removed at little cost (Michel et al. 2019).

Measurement: models of width 64 with 1 and with 8 heads on the built-in corpus: BLEU and the loss on
test sentences. For each head of the encoder, the decoder and the cross-attention: the entropy of
its weights, the mean offset of the attended position, and the weight within one position of the
diagonal (diagonality); the spread of these over the heads of a layer, before and after training.
Each of the heads is then removed once: the increase of the loss, which is compared within each of
the six layers of attention, because some layers matter more than others.

Rule, in each seed: eight heads have a higher BLEU than one; the standard deviations of entropy,
mean offset and diagonality over the heads of a layer, in the mean over the layers, are at least
three times those before training; in the mean over the layers, the most important head of a layer
costs at least five times its median head.

Remark: with one head all standard deviations are 0 and the most important head is the median head.
With eight, they increase with training, and the loss depends on one head of a layer more than on
the median head, but by less than the rule demands. Both models solve most of this task, so a
difference of BLEU would have to be large to show.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from seq2seq.scripts.experiments.figures import bars, panels
from seq2seq.scripts.experiments.heads import KINDS, ablated_losses, head_statistics
from seq2seq.scripts.experiments.korean_model import (
    evenly_spaced,
    korean_task,
    trained_korean,
    untrained_korean,
    word_bleu,
)
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values
from seq2seq.scripts.experiments.small_model import best_hypotheses

CLAIM = "Several heads are better than one at equal width, and they specialise."
ARMS = ("1 head", "8 heads")
SENTENCES = {"tiny": 64, "full": 256}


def measure(arm: str, seed: int, size: str) -> Result:
    """BLEU, loss, statistics of each head [kind, layer, head], and the cost of its removal."""
    heads, known = int(arm.split()[0]), korean_task(size)
    trained = trained_korean(size, seed, heads)
    test = evenly_spaced(known.test, SENTENCES[size])
    pairs = known.encoded(test)
    outputs, _ = best_hypotheses(trained, known.task, pairs[0])
    texts = [known.target.decode(ids) for ids in outputs]
    before = head_statistics(untrained_korean(size, seed, heads), known.task, pairs)
    losses = ablated_losses(trained, known.task, pairs)
    return {
        "bleu": word_bleu(texts, [target for _, target in test]).value,
        "loss": losses[0],
        "before": before,
        "heads": head_statistics(trained, known.task, pairs),
        "costs": (losses[1:] - losses[0]).reshape(len(KINDS), -1, heads),
    }


def head_spread(result: Result, when: str, name: str) -> float:
    """The standard deviation of a statistic over the heads, mean over kinds and layers."""
    return float(np.std(result[when][name], axis=-1).mean())


def spread_check(runs: Sequence[Result], name: str, words: str, digits: int) -> Check:
    """Whether the heads of a layer differ at least three times as much as before training."""
    before, after = ([head_spread(run, when, name) for run in runs] for when in ("before", "heads"))
    return Check(
        f"the {words} of the heads of a layer deviates by {spread(after, digits)} "
        f"({spread(before, digits)} before training)",
        all(b >= 3 * a and b > 0 for a, b in zip(before, after, strict=True)),
    )


def judge(results: Results) -> list[Check]:
    one, eight = (values(results, arm, "bleu") for arm in ARMS)
    loss = [values(results, arm, "loss") for arm in ARMS]
    runs = results["8 heads"]
    most = [float(np.max(run["costs"], axis=-1).mean()) for run in runs]
    median = [float(np.median(run["costs"], axis=-1).mean()) for run in runs]
    return [
        Check(
            f"BLEU is {spread(one, 1)} with one head and {spread(eight, 1)} with eight (loss "
            f"{spread(loss[0])} and {spread(loss[1])} nats)",
            all(a < b for a, b in zip(one, eight, strict=True)),
            f"BLEU rises by {spread(np.subtract(eight, one).tolist(), 1)} with eight heads",
        ),
        spread_check(runs, "entropy", "entropy in nats", 2),
        spread_check(runs, "offset", "mean offset in positions", 2),
        spread_check(runs, "diagonality", "diagonality", 3),
        Check(
            f"without the most important head of a layer the loss rises by {spread(most, 3)} nats, "
            f"without its median head by {spread(median, 3)} (means over the layers)",
            all(a >= 5 * b and a > 0 for a, b in zip(most, median, strict=True)),
        ),
    ]


def draw(results: Results) -> Any:
    titles = "BLEU", "heads (seed 0)", "heads (seed 0)", "cost of the removal of a head, nats"
    figure, axes = panels(*titles, width=3)
    bars(axes[0], ARMS, [values(results, arm, "bleu") for arm in ARMS])
    run = results["8 heads"][0]
    for place, kind in enumerate(KINDS):
        statistics = {name: np.ravel(numbers[place]) for name, numbers in run["heads"].items()}
        axes[1].plot(statistics["offset"], statistics["entropy"], "o", ms=4, label=kind)
        axes[2].plot(statistics["diagonality"], statistics["entropy"], "o", ms=4, label=kind)
        for layer, costs in enumerate(run["costs"][place]):
            axes[3].plot(np.sort(costs)[::-1], marker=".", label=f"{kind}, layer {layer + 1}")
    axes[1].set_xlabel("mean offset, positions")
    axes[2].set_xlabel("diagonality")
    axes[1].set_ylabel("entropy, nats")
    axes[1].legend()
    axes[3].set_xlabel("heads of a layer by cost (seed 0)")
    axes[3].legend(fontsize=6)
    return figure
