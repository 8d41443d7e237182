"""Run the experiments on the textbook's claims about the Transformer: docs/CLAIMS.md.

    python scripts/claims.py all
    python scripts/claims.py softmax_scaling --seeds=5 --output=/tmp/claims
Needs pip install -e '.[viz]'. Each experiment is a module of scripts/experiments/ of the same name.
Results are stored after each seed, so a stopped command resumes; --overwrite measures again.
"""

import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.errors import CONFIGURATION, OUTPUT, UserError
from runtime.files import write_atomic
from runtime.path_flags import define_path
from scripts.experiments.outcome import SIZES, Experiment, Outcome, verdict
from scripts.experiments.page import claims_page

DOCS = Path(__file__).parent.parent / "docs"
NAMES = (
    "softmax_scaling",
    "causal_masking",
    "mask_before_softmax",
    "word_order",
    "longer_sequences",
    "relative_positions",
    "attention_heads",
    "residual_connections",
    "feed_forward_layers",
    "teacher_forcing",
    "beam_sizes",
    "word_vectors",
    "word_alignment",
)
COMMANDS = {"all": NAMES, **{name: (name,) for name in NAMES}}


def main(command: str) -> None:
    f = flags.FLAGS
    if command not in COMMANDS:
        raise UserError(
            CONFIGURATION,
            f"the claim is unknown: expected all or one of {', '.join(NAMES)}, got {command!r}",
        )
    try:
        import matplotlib  # noqa: F401 – before an hour of measurements
    except ImportError:
        raise UserError(OUTPUT, "figures need matplotlib; pip install -e '.[viz]'") from None
    output = Path(f.output).expanduser()
    prepare_jax(f.compilation_cache, devices=1)
    for name in COMMANDS[command]:
        run_experiment(name, output, f.size, f.seeds, f.overwrite)
    write_atomic(output / "CLAIMS.md", claims_page(experiments(), output))


def experiments() -> dict[str, Experiment]:
    """The modules of all experiments by name."""
    return {name: import_module(f"scripts.experiments.{name}") for name in NAMES}


def run_experiment(name: str, output: Path, size: str, seeds: int, overwrite: bool) -> None:
    """Measure what is missing, write OUTPUT/claims/NAME.json and NAME.svg, print the checks."""
    from scripts.experiments.figures import save_figure

    experiment: Experiment = import_module(f"scripts.experiments.{name}")
    path = output / "claims" / f"{name}.json"
    if overwrite:
        path.unlink(missing_ok=True)
    outcome = Outcome(path, size)
    for seed in range(seeds):
        for arm in experiment.ARMS:
            if not outcome.has(arm, seed):
                print(f"{name}: {arm}, seed {seed}", file=sys.stderr)
                start = time.monotonic()
                result = experiment.measure(arm, seed, size)
                outcome.add(arm, seed, result, time.monotonic() - start)
    save_figure(experiment.draw(outcome.results), path.with_suffix(".svg"))
    checks = experiment.judge(outcome.results)
    print(f"{experiment.NUMBER}. {experiment.CLAIM}\n   holds: {verdict(checks)}")
    for check in checks:
        print(f"   {'yes' if check.holds else 'no '}  {check.measured}")
    print(f"   {outcome.seconds:.0f} s")


def define_flags() -> None:
    define_path("output", str(DOCS), "The directory of CLAIMS.md and of claims/ with the results.")
    flags.DEFINE_enum("size", "full", SIZES, "The size of the experiments; tiny is for tests.")
    flags.DEFINE_integer("seeds", 3, "The number of seeds of each experiment.", lower_bound=1)
    flags.DEFINE_bool("overwrite", False, "Measure again instead of resuming.")


if __name__ == "__main__":
    first = sys.argv.pop(1) if sys.argv[1:] and not sys.argv[1].startswith("-") else ""
    run_command(define_flags, partial(main, first))
