"""The sections of a report as HTML: runs, scores, curves, samples, config and data."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from seq2seq.runtime.logs import format_duration
from seq2seq.scripts.pages.curves import SERIES_COLORS, Curve, chart
from seq2seq.scripts.pages.run_records import RunRecords, Sample, default_config
from seq2seq.scripts.pages.template import text

SENTENCES = 5  # of the samples
CHECKPOINTS = 8  # of each sentence
SCORES = {  # metric of an evaluation → its name
    "bleu": "BLEU",
    "chrf": "chrF2",
    "exact_match": "exact match (%)",
    "loss": "loss",
    "nll": "negative log-likelihood",
    "perplexity": "perplexity",
    "accuracy": "next-token accuracy",
}
PARTS = {"train": "training", "valid": "validation"}  # the first word of a metric → its data
SET_BY_TRAINING = ("model.source_vocab_size", "model.target_vocab_size", "data.vocab_sha256")
CURVES = (  # title, unit, metrics; the second one of a pair is dashed
    ("Loss", "nats per target token", ("train_loss", "valid_loss")),
    ("Validation BLEU", "", ("valid_bleu",)),
    ("Learning rate", "", ("train_learning_rate",)),
    ("Throughput", "target tokens per second", ("train_tokens_per_second",)),
)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; all cells are HTML. The first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>'
        "</table></div>\n"
    )


def headings(runs: Sequence[RunRecords]) -> list[str]:
    """The headings of the columns of the runs, with their colours."""
    return [
        f'<span class="swatch" style="background: var(--series-{i % SERIES_COLORS})"></span>'
        f"{text(run.name)}"
        for i, run in enumerate(runs)
    ]


def runs_section(runs: Sequence[RunRecords]) -> str:
    """When, where and with what each run was made."""
    rows = [[text(name), *map(text, values)] for name, *values in _facts(runs)]
    return table(["", *headings(runs)], rows)


def _facts(runs: Sequence[RunRecords]) -> list[list[Any]]:
    """Rows of a name and the value of each run."""

    def row(name: str, function: Callable[[RunRecords], Any]) -> list[Any]:
        return [name, *map(function, runs)]

    def logged(prefix: str) -> Callable[[RunRecords], str]:
        return lambda run: next(
            (line.removeprefix(prefix) for line in reversed(run.log) if line.startswith(prefix)),
            "–",
        )

    def training_time(run: RunRecords) -> str:
        return "–" if run.seconds is None else format_duration(run.seconds)

    def languages(run: RunRecords) -> str:
        codes = [run.config.get(f"data.{side}_language", "") for side in ("source", "target")]
        return " → ".join(code or "–" for code in codes) if any(codes) else "–"

    facts = [
        row("directory", lambda run: run.path),
        row("command", lambda run: " ".join(map(str, run.facts.get("command", "–")))),
        row("started", lambda run: run.facts.get("started", "–")),
        row("times resumed", lambda run: len(run.facts.get("resumed", []))),
        row("commit", lambda run: str(run.facts.get("commit", ""))[:10] or "–"),
        row("JAX", lambda run: run.facts.get("versions", {}).get("jax", "–")),
        row("devices", logged("devices: ")),
        row("parameters", logged("parameters: ")),
        row("last step", lambda run: f"{run.metrics[-1]['step']:,}" if run.metrics else "–"),
        row("training time to the last checkpoint", training_time),
        row("best checkpoint", lambda run: run.best.get("checkpoint", "–")),
        row("languages", languages),
    ]
    return facts if any(value != "–" for value in facts[-1][1:]) else facts[:-1]


def scores_section(runs: Sequence[RunRecords]) -> str:
    """Final scores on the held-out data with their signatures, and the best validation scores."""
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    for i, run in enumerate(runs):
        for name, entry in run.scores.get("sets", {}).items():
            for score in entry["scores"]:
                title = f"{name} {score['name']}".strip(), score["signature"]
                rows.setdefault(title, {})[i] = f"{score['value']:.2f}"
    body = ""
    if rows:
        cells = [
            [f"{text(name)}<br><small>{text(signature)}</small>", *_cells(values, len(runs))]
            for (name, signature), values in rows.items()
        ]
        checkpoints = {i: text(run.scores.get("checkpoint", "–")) for i, run in enumerate(runs)}
        cells.append(["checkpoint", *_cells(checkpoints, len(runs))])
        body += "<h3>Held-out data, at the end of training</h3>\n"
        body += table(["score", *headings(runs)], cells)
    body += "".join(map(_missing_scores, runs))
    best = [run.best_scores() for run in runs]
    names = sorted(set().union(*best), key=_score_order)
    if names:
        body += "<h3>Validation data, best checkpoint</h3>\n"
        cells = [
            [
                text(_score_name(name)),
                *(f"{scores[name]:.4g}" if name in scores else "–" for scores in best),
            ]
            for name in names
        ]
        body += table(["score", *headings(runs)], cells)
    return body


def _missing_scores(run: RunRecords) -> str:
    """Why a run has no scores on held-out data; "" if it has."""
    if run.scores.get("sets"):
        return ""
    reason = "no held-out data"
    if not run.scores:
        reason = (
            "no scores.json, because the training has not ended or an earlier version trained "
            "this run"
        )
    return f'<p class="muted">{text(run.name)}: {reason}.</p>\n'


def _score_order(name: str) -> tuple[str, int]:
    group, _, metric = name.rpartition("/")
    return group, [*SCORES, metric].index(metric)


def _score_name(name: str) -> str:
    group, _, metric = name.rpartition("/")
    return f"{group} {SCORES.get(metric, metric)}".strip()


def _cells(values: dict[int, str], count: int) -> list[str]:
    return [values.get(i, "–") for i in range(count)]


def curves_section(runs: Sequence[RunRecords]) -> str:
    """The curves of all runs: a colour for each run, a dash pattern for each metric and set."""
    figures = ""
    for number, (title, unit, metrics) in enumerate(CURVES):
        curves: list[Curve] = []
        dashes: dict[tuple[str, str], int] = {}
        for color, run in enumerate(runs):
            for metric in metrics:
                for name, (steps, values) in run.series(metric).items():
                    dash = dashes.setdefault((metric, name), len(dashes))
                    words = (run.name if len(runs) > 1 else "", PARTS[metric.split("_")[0]], name)
                    label = ", ".join(filter(None, words))
                    curves.append(Curve(label, steps, values, color, dash))
        if curves:
            figures += chart(f"chart{number}", title, unit, curves)
    if not figures:
        return '<p class="muted">No metrics yet.</p>'
    return f'<div class="charts">\n{figures}</div>\n'


def samples_section(runs: Sequence[RunRecords]) -> str:
    """The outputs for some validation sentences, checkpoint by checkpoint."""
    sentences: dict[tuple[str, str], list[tuple[int, Sample]]] = {}
    for i, run in enumerate(runs):
        for sample in run.samples:
            sentences.setdefault((sample.name, sample.source), []).append((i, sample))
    chosen = first_of_each(sentences.values(), len(runs))
    if not chosen:
        return '<p class="muted">No samples yet.</p>'
    return "".join(_sentence(runs, outputs) for outputs in chosen[:SENTENCES])


def first_of_each(
    sentences: Iterable[list[tuple[int, Sample]]], count: int
) -> list[list[tuple[int, Sample]]]:
    """Sentences that several runs share first, then those of the runs in turn."""
    places, ranked = [0] * count, []
    for outputs in sentences:
        run = outputs[0][0]
        ranked.append((-len({i for i, _ in outputs}), places[run], run, outputs))
        places[run] += 1
    return [outputs for *_, outputs in sorted(ranked, key=lambda rank: rank[:3])]


def _sentence(runs: Sequence[RunRecords], outputs: list[tuple[int, Sample]]) -> str:
    """A source and its reference, with the outputs of the checkpoints of each run."""
    sample, rows = outputs[0][1], []
    for i, heading in enumerate(headings(runs)):
        of_run = [output for run, output in outputs if run == i]
        for output in evenly_spaced(of_run, CHECKPOINTS):
            is_same = output.output == output.reference
            same = ' <span class="same">= reference</span>' if is_same else ""
            checkpoint = text(output.checkpoint)
            title = f"{heading} · {checkpoint}" if len(runs) > 1 else checkpoint
            rows.append([title, f"{text(output.output)}{same}"])
    name = f'<p class="muted">{text(sample.name)}</p>' if sample.name else ""
    return (
        f'<div class="sample">{name}<p><span class="label-text">source</span>{text(sample.source)}'
        f'</p>\n<p><span class="label-text">reference</span>{text(sample.reference)}</p>\n'
        f"{table(['step', 'output'], rows)}</div>\n"
    )


def evenly_spaced(items: Sequence[Any], count: int) -> list[Any]:
    """`count` evenly spaced items, among them the first and the last; all items if fewer."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def config_section(runs: Sequence[RunRecords]) -> str:
    """The fields that differ between the runs or from the defaults, and all fields."""
    defaults = default_config()
    names = sorted(set().union(*(run.config for run in runs)), key=list(defaults).index)
    values = {name: [run.config.get(name, "–") for run in runs] for name in names}
    body = ""
    if len(runs) > 1:
        body += "<h3>Differences between the runs</h3>\n"
        body += _fields(runs, {k: v for k, v in values.items() if len(set(map(repr, v))) > 1})
    body += "<h3>Differences from the defaults</h3>\n"

    def differs(name: str, of_runs: list[Any]) -> bool:
        return name not in SET_BY_TRAINING and any(value != defaults[name] for value in of_runs)

    changed = {k: v for k, v in values.items() if differs(k, v)}
    body += _fields(runs, changed, defaults)
    return body + f"<details><summary>All fields</summary>\n{_fields(runs, values)}</details>\n"


def _fields(
    runs: Sequence[RunRecords],
    values: dict[str, list[Any]],
    defaults: dict[str, Any] | None = None,
) -> str:
    """A table of config fields, with a column of the defaults if they are given."""
    if not values:
        return '<p class="muted">none</p>\n'
    rows = [
        [
            text(name).replace(".", ".<wbr>"),
            *([_value(defaults[name])] if defaults else []),
            *map(_value, of_runs),
        ]
        for name, of_runs in values.items()
    ]
    return table(["field", *(["default"] if defaults else []), *headings(runs)], rows)


def _value(value: Any) -> str:
    """A value of a config field; an empty text is shown as "empty"."""
    return '<span class="muted">empty</span>' if value == "" else text(value)


def data_section(runs: Sequence[RunRecords]) -> str:
    """What the last start of each run logged about its data, and the hashes of its files."""
    body = ""
    for run, heading in zip(runs, headings(runs), strict=True):
        hashes = [[text(name), f"<code>{text(sha)}</code>"] for name, sha in _hashes(run)]
        body += f"<h3>{heading}</h3>\n<pre>{text(chr(10).join(run.start) or 'no log')}</pre>\n"
        if hashes:
            body += "<details><summary>Files and their SHA-256</summary>\n"
            body += f"{table(['file', 'SHA-256'], hashes)}</details>\n"
    return body


def _hashes(run: RunRecords) -> list[tuple[str, str]]:
    data = run.facts.get("data", {})
    return list(data.items()) if isinstance(data, dict) else []
