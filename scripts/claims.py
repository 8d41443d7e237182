"""Run the experiments on published claims about the Transformer: docs/CLAIMS.md.

    python scripts/claims.py all
    python scripts/claims.py softmax_scaling --seeds=5 --output=/tmp/claims
Needs pip install -e '.[viz]'. Each experiment is a module of scripts/experiments/ of the same name.
Results are stored after each seed, so a stopped command resumes. Results of another size, or of
another version of the modules, are measured again; --overwrite measures all again.
"""

import sys
import time
from importlib import import_module
from pathlib import Path

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.files.output_files import write_atomic
from seq2seq.runtime.devices import keep_freed_memory, prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.scripts import experiments
from seq2seq.scripts.experiments.outcome import SIZES, Experiment, Outcome, verdict
from seq2seq.scripts.experiments.page import claims_page
from seq2seq.scripts.experiments.source_digest import source_digest

DOCS = Path(__file__).resolve().parent.parent / "docs"
# The modules of scripts/experiments/ and the numbers of their claims, in the document's order.
NUMBERS = {
    "softmax_scaling": 1,
    "causal_masking": 2,
    "mask_before_softmax": 3,
    "word_order": 4,
    "longer_sequences": 5,
    "relative_positions": 6,
    "context_vector": 7,
    "attention_heads": 8,
    "residual_connections": 9,
    "feed_forward_layers": 10,
    "teacher_forcing": 11,
    "beam_sizes": 12,
    "attention_cost": 13,
    "parallel_training": 14,
    "word_vectors": 15,
    "word_alignment": 16,
}
COMMANDS = {"all": list(NUMBERS)} | {name: [name] for name in NUMBERS}


def main(command: str = "") -> None:
    f = flags.FLAGS
    if command not in COMMANDS:
        raise UserError(
            CONFIGURATION,
            f"the claim is unknown: expected all or one of {', '.join(NUMBERS)}, got {command!r}",
        )
    try:
        import matplotlib  # noqa: F401 – before an hour of measurements
    except ImportError:
        raise UserError(CONFIGURATION, "figures need matplotlib; pip install -e '.[viz]'") from None
    output = Path(f.output).expanduser()
    if f.size != "full" and output.resolve() == DOCS.resolve():
        raise UserError(
            CONFIGURATION,
            f"--size={f.size} would replace the results in {DOCS.name}/claims: expected another "
            "--output; add --output=DIRECTORY",
        )
    prepare_jax(f.compilation_cache, devices=1)
    for name in COMMANDS[command]:
        run_experiment(name, output, f.size, f.seeds, f.overwrite)
    write_atomic(output / "CLAIMS.md", claims_page(numbered(), output))


def numbered() -> dict[int, Experiment]:
    """The modules of all experiments by the numbers of their claims."""
    return {number: load(name) for name, number in NUMBERS.items()}


def load(name: str) -> Experiment:
    """The module of an experiment."""
    return import_module(f"{experiments.__name__}.{name}")


def run_experiment(name: str, output: Path, size: str, seeds: int, overwrite: bool) -> None:
    """Measure what is missing, write OUTPUT/claims/NAME.json and NAME.svg, print the checks."""
    import jax

    from seq2seq.scripts.experiments.figures import save_figure

    experiment = load(name)
    path = output / "claims" / f"{name}.json"
    if overwrite:
        path.unlink(missing_ok=True)
    outcome = Outcome(path, size, source_digest(name))
    if path.exists() and not outcome.measured:
        print(f"{name}: the stored results are of another size or version", file=sys.stderr)
    for seed in range(seeds):
        for arm in experiment.ARMS:
            if not outcome.has(arm, seed):
                print(f"{name}: {arm}, seed {seed}", file=sys.stderr)
                start = time.monotonic()
                result = experiment.measure(arm, seed, size)
                outcome.add(arm, seed, result, time.monotonic() - start)
                jax.clear_caches()  # each training compiles its own programs
    save_figure(experiment.draw(outcome.results), path.with_suffix(".svg"))
    checks = experiment.judge(outcome.results)
    print(f"{NUMBERS[name]}. {experiment.CLAIM}\n   holds: {verdict(checks)}")
    for check in checks:
        print(f"   {'yes' if check.holds else 'no '}  {check.measured}")
    print(f"   {outcome.seconds:.0f} s")


def define_flags() -> None:
    define_path("output", str(DOCS), "The directory of CLAIMS.md and of claims/ with the results.")
    flags.DEFINE_enum("size", "full", SIZES, "The size of the experiments; tiny is for tests.")
    flags.DEFINE_integer("seeds", 3, "The number of seeds of each experiment.", lower_bound=1)
    flags.DEFINE_bool("overwrite", False, "Measure again instead of resuming.")


def run() -> None:
    """The command line."""
    keep_freed_memory()
    run_command(define_flags, main, arguments=1)


if __name__ == "__main__":
    run()
