"""Reports at the start of training (devices, model, batches) and at its end (scores, samples)."""

import jax

from data.batches import Batches, num_batches, pairs_left_out, useful_share
from data.scores import bleu, exact_match, tokenized_bleu
from model.config import num_parameters
from runtime import processes
from storage.checkpoint import read_best
from storage.config import Config
from storage.run import Run
from training.evaluate import EvaluationTranslator, samples, translate_in_parallel
from training.inputs import Data
from training.parameters import num_frozen

SAMPLES = 5


def announce(config: Config, run: Run, batches: Batches, epoch: int) -> None:
    """Log the devices, the number of parameters, and the batches of `epoch`."""
    rows, source, target = batches.shape
    plan = batches.plan(epoch)
    share = useful_share(batches.pairs(epoch), plan, source, target)
    kind = jax.devices()[0].device_kind
    run.log(
        f"devices: {jax.device_count()} × {kind} ({jax.default_backend()})"
        + (f", {processes.count()} processes" if processes.count() > 1 else "")
    )
    parameters, frozen = num_parameters(config.model), num_frozen(config)
    run.log(
        f"parameters: {parameters:,}"
        + (f", {frozen:,} frozen and {parameters - frozen:,} trained" if frozen else "")
    )
    run.log(
        f"batch: {rows} rows of {source} + {target} tokens, {share:.1%} useful (not padding); "
        f"{num_batches(plan, rows)} batches per epoch, {config.training.num_steps:,} steps"
    )
    if left_out := pairs_left_out(plan, rows):
        run.log(
            f"epoch {epoch}: {left_out:,} of {len(plan.pairs):,} pairs are left out, because they "
            "do not fill a last batch; each epoch leaves out other pairs"
        )


def print_results(run: Run, data: Data, translator: EvaluationTranslator) -> None:
    """Print samples and scores on the held-out data; log the command for translation."""
    if data.test is not None:
        sources, references = data.test.source, data.test.target
        texts = translate_in_parallel(translator, sources)
    if not processes.is_first():
        return
    if data.test is not None:
        print("\n".join(samples(sources, texts, references, SAMPLES)))
        for metric in (bleu, tokenized_bleu):
            print(f"held-out {metric(texts, references)}")
        best = read_best(run.path).get("checkpoint", "latest")
        print(
            f"held-out exact match {exact_match(texts, references):.1f} % of {len(texts):,} "
            f"sentences (checkpoint: {best})",
            flush=True,
        )
    run.log(f"translate with: python decode.py --workdir={run.path} --input=FILE")
