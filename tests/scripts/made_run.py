"""A run directory with records of a training that did not happen, for tests of the report."""

import json
from pathlib import Path

from seq2seq.config.tree import save_config
from tests.support.tiny import tiny_config

STEPS = (2, 4, 6)
SOURCE, REFERENCE = "나는 <밥>을 먹었다", "I ate & rice"
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"


def loss_at(step: int, scale: float) -> float:
    return scale / step


def made_run(path: Path, scale: float = 3.0, **training) -> Path:
    """Write the records of a run; `training` are fields of the config."""
    config = tiny_config("tsv:nowhere")
    for name, value in training.items():
        setattr(config.training, name, value)
    path.mkdir(parents=True)
    save_config(config, path / "config.json")
    facts = {"command": ["train.py", "--x=<y>"], "started": "2030-01-02T03:04:05+00:00",
             "commit": "0123456789abcdef", "versions": {"jax": "9.9"}, "data": {"a<b": "f00"},
             "resumed": [{}]}  # fmt: skip
    (path / "run.json").write_text(json.dumps(facts))
    log = ["run: old", "train: 1 pairs kept, 0 dropped", "step 1/6  loss 9",
           "run: here", "train: 12 pairs kept, 3 dropped (3 too <long>)", "resumed at step 2",
           "devices: 1 × cpu (cpu)", "first step after 1 s", "step 2/6  loss 1",
           "done in 0:00:07"]  # fmt: skip
    (path / "train.log").write_text("\n".join(log) + "\n", encoding="utf-8")
    entries = []
    for step in STEPS:
        rate = {"train_learning_rate": step / 1000, "train_tokens_per_second": 100.0 * step}
        entries.append({"step": step, "train_loss": loss_at(step, scale), **rate})
        scores = {"valid_loss": loss_at(step, scale) + 1, "valid_bleu": 10.0 * step}
        entries.append({"step": step, **scores})
    entries.append({"step": 6, "train_loss": float("nan")})
    lines = [json.dumps(entry) for entry in entries] + ['{"step": 8, "train_l']  # after a crash
    (path / "metrics.jsonl").write_text("\n".join(lines))
    (path / "samples").mkdir()
    for name in (*STEPS, "average"):
        output = REFERENCE if name == 6 else f"output of {name} <b{scale}>"
        sample = f"source    {SOURCE}\nreference {REFERENCE}\nmodel     {output}\n\n"
        (path / "samples" / f"{name}.txt").write_text(sample, encoding="utf-8")
    (path / "samples" / "nonfinite-3.txt").write_text("a.tsv:3\n")
    (path / "best.json").write_text(json.dumps({"checkpoint": 4, "bleu": 40.0}))
    score = {"name": "BLEU", "value": 12.25 * scale, "signature": SIGNATURE}
    sets = {"": {"sentences": 7, "scores": [score]}}
    (path / "scores.json").write_text(json.dumps({"checkpoint": 4, "sets": sets}))
    return path
