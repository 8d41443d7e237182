"""Reports at the start of training (devices, model, batches) and at its end (scores, samples)."""

from typing import Any

import jax

from data.batches import Batches, DataPosition
from data.corpus import Corpus
from data.held_out import qualified
from data.scores import Score, bleu, chrf, exact_match, tokenized_bleu
from model.config import num_parameters
from runtime import processes
from runtime.precision import precision_hint
from storage.checkpoint import read_best
from storage.config import Config, TrainingConfig
from storage.run import Run
from training.evaluate import EvaluationTranslator, samples, translate_in_parallel
from training.inputs import Data
from training.parameters import num_frozen
from training.recommendation import size_hint

SAMPLES = 5
MIXED = "--config.model.dtype=mixed"
MIXED_SPEEDUP = "1.6 to 1.8"  # on a CPU with AVX512-BF16: benchmarks/train_speed.md


def announce(config: Config, run: Run, batches: Batches, position: DataPosition) -> None:
    """Log the devices, the number of parameters, and the batches of the epoch of `position`."""
    rows, source, target = batches.shape
    epoch = batches.summary(position)
    about = "" if epoch.exact else "about "
    kind, platform = jax.devices()[0].device_kind, jax.default_backend()
    run.log(
        f"devices: {jax.device_count()} × {kind} ({platform})"
        + (f", {processes.count()} processes" if processes.count() > 1 else "")
    )
    if hint := precision_hint(config.model.dtype, MIXED, MIXED_SPEEDUP):
        run.log(hint)
    parameters, frozen = num_parameters(config.model), num_frozen(config)
    run.log(
        f"parameters: {parameters:,}"
        + (f", {frozen:,} frozen and {parameters - frozen:,} trained" if frozen else "")
    )
    if not run.resumed and (hint := size_hint(config, epoch.pairs)):
        run.log(hint)
    run.log(
        f"batch: {rows} rows of {source} + {target} tokens, {epoch.useful:.1%} useful (not "
        f"padding); {about}{epoch.batches:,} batches per epoch, {limits(config.training)}"
    )
    if epoch.left_out:
        run.log(
            f"epoch {position.epoch}: {about}{epoch.left_out:,} of {epoch.pairs:,} pairs are left "
            "out, because they do not fill a last batch; each epoch leaves out other pairs"
        )


def limits(training: TrainingConfig) -> str:
    """The limits of training, as "100,000 steps or 3 epochs": the first one that is reached."""
    epochs = training.max_epochs
    values = (
        f"{training.num_steps:,} steps",
        f"{epochs:,} epoch{'s' * (epochs > 1)}" * (epochs > 0),
        f"{training.max_hours:g} hours" * (training.max_hours > 0),
    )
    return " or ".join(filter(None, values))


def print_results(run: Run, data: Data, translator: EvaluationTranslator) -> None:
    """Print samples and scores on the held-out data, and write scores.json; log the command for
    translation."""
    checkpoint, sets = read_best(run.path).get("checkpoint", "latest"), {}
    for name, corpus in data.test.items():
        texts = translate_in_parallel(translator, corpus.source)
        if processes.is_first():
            sets[name] = print_scores(qualified("held-out", name), corpus, texts, checkpoint)
    run.write_scores({"checkpoint": checkpoint, "sets": sets})
    run.log(f"translate with: python decode.py --workdir={run.path} --input=FILE")


def print_scores(
    title: str, corpus: Corpus, texts: list[str], checkpoint: int | str
) -> dict[str, Any]:
    """Print samples of the translations `texts` of a corpus, and their scores after `title`.

    Returns the entry of the corpus in scores.json.
    """
    references = corpus.target
    print("\n".join(samples(corpus.source, texts, references, SAMPLES)))
    scores = [metric(texts, references) for metric in (bleu, tokenized_bleu, chrf)]
    for score in scores:
        print(f"{title} {score}")
    exact = exact_match(texts, references)
    print(
        f"{title} exact match {exact:.1f} % of {len(texts):,} sentences (checkpoint: {checkpoint})",
        flush=True,
    )
    scores.append(Score("exact match", exact, f"{len(texts):,} sentences, in percent"))
    return {"sentences": len(texts), "scores": [score._asdict() for score in scores]}
