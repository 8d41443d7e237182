"""Larger beams and the length penalty

Claim: beam search with 4 hypotheses and a length penalty alpha of 0.6 is better than greedy search
(Vaswani et al. 2017, section 6.1). Larger beams find hypotheses of higher probability, but not
better translations (Koehn and Knowles 2017); alpha makes outputs longer (Wu et al. 2016).

Measurement: test sentences of the built-in corpus are translated with beams of 1 to 32 and an alpha
of 0, 0.6 and 1: the mean log-probability and length of the outputs, and BLEU. For an alpha of 0.6
also the time: the median of several rounds, on a machine that may run other work.

Rule, in each seed: the log-probability at alpha 0 is higher with beam 32 than with beam 1; BLEU at
alpha 0.6 is higher with beam 4 than with beam 1, and with beam 32 at most 0.5 above that of beam 4;
with beam 8 the outputs are longer with alpha 1 than with alpha 0; beam 32 takes at least four times
the time of beam 1.

Remark: after the training, greedy search is wrong in few of these sentences, so a larger beam has
little to gain: the difference of BLEU is within the spread over the seeds.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.config.special_tokens import END
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.translate import Request, translate
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.korean_model import (
    evenly_spaced,
    korean_task,
    trained_korean,
    word_bleu,
)
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values
from seq2seq.scripts.experiments.small_model import padded
from seq2seq.scripts.experiments.timing import median_seconds

CLAIM = "Beam 4 is better than greedy search, larger beams are not; alpha lengthens outputs."
ARMS = tuple(f"beam {beam}" for beam in (1, 2, 4, 8, 16, 32))
ALPHAS = (0.0, 0.6, 1.0)
TIMED = 0.6  # the alpha of the time
SENTENCES, LANES = {"tiny": 64, "full": 500}, 32
ROUNDS = {"tiny": 1, "full": 5}


def measure(arm: str, seed: int, size: str) -> Result:
    """Log-probability, length and BLEU of the outputs for each alpha, and the seconds of one."""
    known, trained = korean_task(size), trained_korean(size, seed)
    test = evenly_spaced(known.test, SENTENCES[size])
    sources, _ = known.encoded(test)
    ids, lengths = padded(sources, known.task.source_length)
    limits = jnp.full(len(ids), known.task.target_length)
    request = Request(jnp.asarray(ids), jnp.asarray(lengths), limits)

    @partial(jax.jit, static_argnums=3)
    def search_program(variables: Any, request: Request, alpha: float, beam: int) -> Hypotheses:
        options = SearchOptions(known.task.target_length, END, beam_size=beam, alpha=alpha)
        return translate([(trained.model, variables)], request, options, LANES)

    result: Result = {"log_prob": [], "length": [], "bleu": []}
    run = partial(search_program, trained.variables, request)
    beam = int(arm.split()[1])
    for alpha in ALPHAS:
        best = jax.device_get(run(alpha, beam))
        result["log_prob"].append(best.log_probs[:, 0].mean())
        result["length"].append(best.lengths[:, 0].mean())
        texts = [known.target.decode(t for t in row[0] if t != END) for row in best.tokens]
        result["bleu"].append(word_bleu(texts, [target for _, target in test]).value)
    return result | {"seconds": median_seconds(partial(run, TIMED, beam), ROUNDS[size])}


def at(results: Results, arm: str, name: str, alpha: float) -> list[float]:
    """A number of an arm at an alpha, of each seed."""
    return [result[name][ALPHAS.index(alpha)] for result in results[arm]]


def judge(results: Results) -> list[Check]:
    first, four, eight, last = ARMS[0], ARMS[2], ARMS[3], ARMS[-1]
    probable = [at(results, arm, "log_prob", 0.0) for arm in (first, last)]
    scores = [at(results, arm, "bleu", 0.6) for arm in (first, four, last)]
    lengths = [at(results, eight, "length", alpha) for alpha in (0.0, 1.0)]
    seconds = [values(results, arm, "seconds") for arm in (first, last)]
    ratio = np.divide(seconds[1], seconds[0]).tolist()

    def rises(pair: list[list[float]]) -> bool:
        return all(a < b for a, b in zip(*pair, strict=True))

    return [
        Check(
            f"the mean log-probability is {spread(probable[0], 3)} with beam 1 and "
            f"{spread(probable[1], 3)} with beam 32",
            rises(probable),
        ),
        Check(
            f"BLEU is {spread(scores[0])} with beam 1 and {spread(scores[1])} with beam 4",
            rises(scores[:2]),
            f"BLEU rises by {spread(np.subtract(scores[1], scores[0]).tolist())} with beam 4",
        ),
        Check(
            f"BLEU is {spread(scores[2])} with beam 32",
            rises(scores[:2]) and all(c <= b + 0.5 for b, c in zip(*scores[1:], strict=True)),
        ),
        Check(
            f"outputs have {spread(lengths[0])} tokens with alpha 0 and {spread(lengths[1])} with "
            "alpha 1 (beam 8)",
            rises(lengths),
        ),
        Check(f"beam 32 takes {spread(ratio, 1)} times the time of beam 1", min(ratio) >= 4),
    ]


def draw(results: Results) -> Any:
    titles = "mean log-probability", "BLEU", "tokens", "seconds"
    figure, axes = panels(*titles, width=2.8)
    sizes = [int(arm.split()[1]) for arm in ARMS]
    for axis, name in zip(axes, ("log_prob", "bleu", "length"), strict=False):
        for alpha in ALPHAS:
            runs = np.transpose([at(results, arm, name, alpha) for arm in ARMS])
            curve(axis, sizes, runs, f"alpha {alpha}")
    seconds = np.transpose([values(results, arm, "seconds") for arm in ARMS])
    curve(axes[-1], sizes, seconds, f"alpha {TIMED}")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("beam")
    axes[0].legend()
    return figure
