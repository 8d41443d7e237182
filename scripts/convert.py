"""Convert a directory of transformers (MarianMT, BART, T5 and their relatives) to a run, which
training can start from, or a run to such a directory.

    python scripts/convert.py --from_model=opus-mt-en-de --to=runs/en_de
    python scripts/convert.py --from_run=runs/mine --to_model=DIR [--checkpoint=best]
decode.py translates with either without conversion. A written directory has a model card with the
scores of the run, README.md. An error names what cannot be converted.
"""

import sys
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import refuse_flags, run_command
from seq2seq.cli.path_flags import check_no_comma, define_model, define_path
from seq2seq.decoding.stated_settings import directory_notes
from seq2seq.files.output_files import new_directory, write_atomic
from seq2seq.pretrained.model_card import model_card
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import (
    check_family,
    current_checkpoint,
    export_of,
    load_params,
    open_model,
    read_current,
)
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, OUTPUT, UserError
from seq2seq.runtime.streams import note
from seq2seq.storage.run_files import write_run


def check_new(path: Path) -> None:
    """UserError(OUTPUT) if `path` exists and is not an empty directory. Makes its parent."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(OUTPUT, f"{path} exists already; choose another name, or move it")
    path.parent.mkdir(parents=True, exist_ok=True)


def import_model(directory: Path, run: Path) -> None:
    """Write a run directory that translates as a directory of transformers does."""
    check_family(directory)
    config, tokenizers = open_model(directory, "best")
    check_new(run)
    with new_directory(run) as new:
        prepare_jax("off", 1)
        write_run(new, config, tokenizers, load_params(directory, "best"))
    for line in directory_notes(directory, config):
        note(line)
    print(
        f"translate with: python decode.py --workdir={quote(str(run))} --input=FILE\n"
        "fine-tune with: DATA=DIRECTORY python train.py --config=configs/fine_tune.py "
        f"--workdir=NEW --config.training.init_from={quote(str(run))}",
        file=sys.stderr,
    )


def export_run(run: Path, checkpoint: str, directory: Path, model_type: str = "") -> None:
    """Write a checkpoint of a run as a directory of transformers, with a model card."""
    choose = partial(current_checkpoint, run, checkpoint)  # the run may be still trained
    config, tokenizers = read_current(choose, partial(open_model, run))
    export = export_of(config.model, run, model_type)
    check_new(directory)
    with new_directory(directory) as new:
        prepare_jax("off", 1)
        written = ""

        def load() -> Any:
            nonlocal written
            written, params = read_current(choose, lambda name: (name, load_params(run, name)))
            return params

        for line in export.write(config, tokenizers, load, new):
            print(line, file=sys.stderr)
        card = model_card(new, directory.name, config, run, written)
        write_atomic(new / "README.md", card)


def main() -> None:
    f = flags.FLAGS
    names = {name for name in ("from_model", "to", "from_run", "to_model") if f[name].value}
    if names == {"from_model", "to"}:
        refuse_flags(["model_type", "checkpoint"], "with --from_model")
        check_no_comma("--to", f.to)
        import_model(model_directory(f.from_model).absolute(), Path(f.to).absolute())
    elif names == {"from_run", "to_model"}:
        run = model_directory(f.from_run, f.checkpoint).absolute()
        export_run(run, f.checkpoint, Path(f.to_model).absolute(), f.model_type)
    else:
        raise UserError(
            CONFIGURATION,
            "the flags are incomplete or contradictory: expected --from_model=DIR --to=RUN, or "
            "--from_run=RUN --to_model=DIR",
        )


def define_flags() -> None:
    define_model(
        "from_model",
        None,
        "The model of transformers to import: a directory, a URL or hf://OWNER/NAME[@REVISION].",
    )
    define_path("to", None, "The run directory to write.")
    define_model("from_run", None, "The run to export, a directory or a URL.")
    define_path("to_model", None, "The directory of transformers to write.")
    flags.DEFINE_string(
        "model_type", "", "Of --to_model: marian, bart, t5, …; empty: the first that fits the run."
    )
    flags.DEFINE_string(
        "checkpoint", "best", "Of --from_run: best, latest, average, a step, or an average's name."
    )


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
