"""Write one HTML page about a run, or about several runs in comparison.

    python scripts/report.py --workdir=runs/mine
    python scripts/report.py --workdir=runs/mine,runs/other --output=comparison.html
The page has the config and its differences, the data, curves, samples, final scores with their
signatures, and the attention weights of one sentence. It needs no network. Needs
pip install -e '.[viz]'.
"""

import os
import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import refuse_flags, run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.files.output_files import check_outputs, open_atomic
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.scripts.pages import report_sections as sections
from seq2seq.scripts.pages.attention_data import attention_section, check_sentence, load_example
from seq2seq.scripts.pages.run_records import RunRecords, read_records
from seq2seq.scripts.pages.template import page, text
from seq2seq.storage.run_files import steps

STYLES = ("page.css", "attention.css", "report.css")
SCRIPTS = ("attention_maps.js", "attention.js")


def report_html(runs: list[RunRecords], attention: str) -> str:
    """The page of the runs. `attention` is the HTML of that section, "" for none."""
    names = " and ".join(run.name for run in runs)
    title = f"Comparison of {names}" if len(runs) > 1 else f"Report of {names}"
    parts = {
        "Runs": sections.runs_section(runs),
        "Scores": sections.scores_section(runs),
        "Curves": sections.curves_section(runs),
        "Samples": sections.samples_section(runs),
        "Attention": attention,
        "Config": sections.config_section(runs),
        "Data": sections.data_section(runs),
    }
    parts = {name: content for name, content in parts.items() if content}
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in parts)
    body = f'<h1>{text(title)}</h1>\n<nav aria-label="Sections">{links}</nav>\n'
    for name, content in parts.items():
        body += f'<section id="{name.lower()}">\n<h2>{name}</h2>\n{content}</section>\n'
    return page(title, body, STYLES, SCRIPTS)


def attention_html(runs: list[RunRecords], source: str | None) -> str:
    """The section of the attention weights of the best checkpoint of each run.

    `source` is the sentence; None: the first sample of each run.
    """
    body = ""
    for run, heading in zip(runs, sections.headings(runs), strict=True):
        sentence = source or next((sample.source for sample in run.samples), None)
        if run.config.get("model.kind") == "rnn":
            body += f'<h3>{heading}</h3>\n<p class="muted">The model has no attention.</p>\n'
        elif sentence and (steps(run.path) or (run.path / "average").exists()):
            example = load_example(run.path, "best", sentence, None)
            body += f"<h3>{heading}</h3>\n{attention_section(example)}\n"
    return body


def with_unique_names(runs: list[RunRecords]) -> list[RunRecords]:
    """The runs, with their paths as names if two directories have the same name."""
    if len({run.name for run in runs}) == len(runs):
        return runs
    return [run._replace(name=str(run.path)) for run in runs]


def main() -> None:
    f = flags.FLAGS
    names = f.workdir.split(",")
    paths = {os.path.abspath(os.path.expanduser(name)) for name in names}
    if "" in names or len(paths) < len(names):
        raise UserError(
            CONFIGURATION,
            f"--workdir is invalid: expected different run directories, got {f.workdir!r}; "
            "give each once, with one comma between two",
        )
    if not f.attention:
        refuse_flags(["source"], "with --attention=false")
    check_sentence("source", f.source)
    check_outputs([f.output], f.overwrite)
    runs = with_unique_names([read_records(Path(name)) for name in names])
    attention = ""
    if f.attention:
        prepare_jax(f.compilation_cache, 1, decoding_only=True)
        attention = attention_html(runs, f.source)
    content = report_html(runs, attention).encode()
    with open_atomic(f.output, f.overwrite) as file:
        file.write(content)
    print(f"{f.output}: {len(content) / 1000:,.0f} kB", file=sys.stderr)


def define_flags() -> None:
    define_path("workdir", None, "The run directory; several, separated by commas.", required=True)
    define_path("output", "report.html", "The HTML file to write.")
    flags.DEFINE_string(
        "source", None, "The sentence of the attention weights; by default the first sample."
    )
    flags.DEFINE_bool("attention", True, "Include attention weights; they need the model.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing file.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
