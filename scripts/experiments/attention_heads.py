"""One attention head and eight

Claim: several heads attend to different positions, which averaging in one head inhibits (Vaswani et
al. 2017, section 3.2.2); different heads learn different tasks (section 4, Attention
visualisations). Of trained heads many can be removed at little cost (Michel et al. 2019).

Measurement: models of width 64 with 1 and with 8 heads on the built-in corpus: BLEU and the loss on
test sentences. For each head of the encoder, the decoder and the cross-attention: the entropy of
its weights, the mean offset of the attended position, and the weight within one position of the
diagonal (diagonality); the spread of these over the heads of a layer, before and after training.
Each of the heads is then removed once: the increase of the loss.

Rule, in each seed: eight heads have a higher BLEU than one; the standard deviation of the mean
offset over the heads of a layer is at least three times that before training; the most important
head costs at least five times the median head.

Remark: for translations of this grammar, and a model of this width, one head is as good as eight:
which has the higher BLEU depends on the seed. Eight heads have the lower loss in the mean. Already
random heads differ in their mean offset.
"""

import numpy as np

from scripts.experiments.figures import bars, panels
from scripts.experiments.heads import KINDS, ablated_losses, head_statistics
from scripts.experiments.korean_model import (
    korean_task,
    trained_korean,
    untrained_korean,
    word_bleu,
)
from scripts.experiments.outcome import Check, Result, Results, spread, values
from scripts.experiments.small_model import best_hypotheses

CLAIM = "Several heads are better than one at equal width, and they specialise."
ARMS = ("1 head", "8 heads")
SENTENCES = {"tiny": 64, "full": 256}


def measure(arm: str, seed: int, size: str) -> Result:
    """BLEU, loss, statistics of each head [kind, layer, head], and the cost of its removal."""
    heads, known = int(arm.split()[0]), korean_task(size)
    trained = trained_korean(size, seed, heads)
    test = known.test[:: len(known.test) // SENTENCES[size]][: SENTENCES[size]]
    pairs = known.encoded(test)
    found, _ = best_hypotheses(trained, known.task, pairs[0])
    texts = [known.target.decode(ids) for ids in found]
    before = head_statistics(untrained_korean(size, seed, heads), known.task, pairs)
    losses = ablated_losses(trained, known.task, pairs)
    return {
        "bleu": word_bleu(texts, [target for _, target in test]).value,
        "loss": losses[0],
        "before": before,
        "heads": head_statistics(trained, known.task, pairs),
        "costs": losses[1:] - losses[0],
    }


def offset_spread(result: Result, when: str) -> float:
    """The standard deviation of the mean offset over the heads, mean over kinds and layers."""
    return float(np.std(result[when]["offset"], axis=-1).mean())


def judge(results: Results) -> list[Check]:
    one, eight = (values(results, arm, "bleu") for arm in ARMS)
    loss = [values(results, arm, "loss") for arm in ARMS]
    runs = results["8 heads"]
    before, after = ([offset_spread(run, when) for run in runs] for when in ("before", "heads"))
    most = [float(np.max(run["costs"])) for run in runs]
    median = [float(np.median(run["costs"])) for run in runs]
    return [
        Check(
            f"BLEU is {spread(one, 1)} with one head and {spread(eight, 1)} with eight (loss "
            f"{spread(loss[0])} and {spread(loss[1])} nats)",
            all(a < b for a, b in zip(one, eight, strict=True)),
        ),
        Check(
            f"mean offsets of the heads of a layer deviate by {spread(after)} positions "
            f"({spread(before)} before training)",
            all(b >= 3 * a and b > 0 for a, b in zip(before, after, strict=True)),
        ),
        Check(
            f"without the most important head the loss rises by {spread(most)} nats, without the "
            f"median head by {spread(median, 4)}",
            len(runs[0]["costs"]) > 6
            and all(a >= 5 * b for a, b in zip(most, median, strict=True)),
        ),
    ]


def draw(results: Results):
    figure, axes = panels("BLEU", "heads (seed 0)", "cost of the removal of a head, nats")
    bars(axes[0], ARMS, [values(results, arm, "bleu") for arm in ARMS])
    run = results["8 heads"][0]
    for place, kind in enumerate(KINDS):
        offset, width = (np.ravel(run["heads"][n][place]) for n in ("offset", "entropy"))
        axes[1].plot(offset, width, "o", ms=4, label=kind)
    axes[1].set_xlabel("mean offset, positions")
    axes[1].set_ylabel("entropy, nats")
    axes[1].legend()
    for costs in (run["costs"] for run in results["8 heads"]):
        axes[2].plot(np.sort(costs)[::-1], marker=".")
    axes[2].set_xlabel("heads in order of their cost, one line per seed")
    return figure
