"""Results of the trained claims at the size tiny, and whether the checks of their rules hold."""

from seq2seq.scripts.experiments.outcome import rounded


def measured(module, *arms):
    """One result of each arm, of size tiny; as they are stored."""
    return {arm: [rounded(module.measure(arm, 0, "tiny"))] for arm in arms or module.ARMS}


def held(module, results, *numbers):
    """Whether the checks of these numbers hold (default: all)."""
    checks = module.judge(results)
    return [checks[i].holds for i in numbers or range(len(checks))]
