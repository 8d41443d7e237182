"""The document of the claims, docs/CLAIMS.md: its table and one section for each experiment."""

import inspect
from collections.abc import Mapping
from pathlib import Path

from seq2seq.scripts.experiments.outcome import (
    Experiment,
    by_arm,
    is_complete,
    read_outcome,
    verdict,
)

INTRODUCTION = """\
# Published claims about the Transformer as experiments

Texts about the Transformer make claims about its parts. Here each claim is one experiment: a module
of `scripts/experiments/` that measures it on a generated task or on the built-in corpus, with the
project's own model, training step and search. The rule that decides whether a claim holds is part
of the module.

```
python scripts/claims.py all
python scripts/claims.py softmax_scaling
```

Numbers are means ± sample standard deviations over the seeds. "In part" means that some of the
checks of a claim hold and others do not. The table shows one figure of each claim, the section of
the claim all of them. The models are small (most have two layers of width 32 to 128), so a claim
that fails here may hold for larger ones. The seconds are those of two CPU cores. Claims 8, 12, 15
and 16 share models of the built-in corpus: the training of a model counts for the first of them
that uses it.
This file is written by the command; do not edit it.
"""


def claims_page(experiments: Mapping[int, Experiment], directory: Path) -> str:
    """The text of CLAIMS.md from the results in `directory`/claims; experiments by number."""
    parts = [describe(number, module, directory) for number, module in experiments.items()]
    table = "| | claim | figure | holds |\n|---|---|---|---|\n" + "".join(row for row, _ in parts)
    return "\n".join([INTRODUCTION, table, *(section for _, section in parts)])


def describe(number: int, experiment: Experiment, directory: Path) -> tuple[str, str]:
    """The row and the section of an experiment."""
    name, claim = experiment.__name__.rpartition(".")[2], experiment.CLAIM
    title, _, text = inspect.cleandoc(experiment.__doc__ or "").partition("\n")
    section = f"## {number}. {title}\n{text}\n\nModule: `scripts/experiments/{name}.py`\n"
    path = directory / "claims" / f"{name}.json"
    content = read_outcome(path) if path.exists() else {"results": {}}
    results = by_arm(content["results"])
    if not is_complete(results, experiment.ARMS):
        return f"| {number} | {claim} | not measured yet | |\n", section
    checks = experiment.judge(results)
    lines = "".join(
        f"- {'yes' if check.holds else '**no**'}: {check.measured}\n" for check in checks
    )
    seeds = min(map(len, results.values()))
    size = "" if content["size"] == "full" else f" at the size {content['size']}"
    run = f"{seeds} seeds{size}, {content['seconds']} s"
    section += f"\n![{title}](claims/{name}.svg)\n\nHolds: **{verdict(checks)}** ({run}).\n{lines}"
    figure = " ".join(check.figure for check in checks if check.figure)
    return f"| {number} | {claim} | {figure} | {verdict(checks)} |\n", section
