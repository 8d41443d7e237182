"""Write one HTML page with the attention weights of every layer and head for one sentence.

    python scripts/attention_page.py --workdir=RUN --source='나는 밥을 먹었다.'
The page needs no network. --target is a given translation; by default the model translates.
--npz=FILE.npz writes the arrays encoder [L, H, S, S], decoder [L, H, T, T] and cross [L, H, T, S]
(layers, heads, queries, keys), and the pieces as the arrays source [S] and target [T].
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_model, define_path
from seq2seq.decoding.engine.attention_weights import Attention
from seq2seq.files.output_files import check_outputs, open_atomic
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.scripts.pages.attention_data import (
    Example,
    attention_section,
    check_sentence,
    load_example,
)
from seq2seq.scripts.pages.template import page, text

STYLES = ("page.css", "attention.css")
SCRIPTS = ("attention_maps.js", "attention.js")


def attention_html(name: str, example: Example) -> str:
    """The page of an example of a model with a name."""
    body = f"<h1>Attention of {text(name)}</h1>\n{attention_section(example)}"
    return page(f"Attention of {name}", body, STYLES, SCRIPTS)


def write_arrays(path: str, attention: Attention, overwrite: bool) -> None:
    """Write the fields of `attention` as a .npz file."""
    with open_atomic(path, overwrite) as file:
        arrays: dict[str, Any] = {name: np.array(x) for name, x in attention._asdict().items()}
        np.savez_compressed(file, **arrays)


def check_flags(f: flags.FlagValues) -> None:
    """UserError for flags that are invalid for any model; nothing is loaded yet."""
    check_sentence("source", f.source)
    check_sentence("target", f.target)
    if f.npz and not f.npz.endswith(".npz"):
        raise UserError(
            CONFIGURATION, f"--npz is invalid: expected FILE.npz, got {f.npz!r}; rename the file"
        )
    check_outputs(filter(None, (f.output, f.npz)), f.overwrite)


def main() -> None:
    f = flags.FLAGS
    check_flags(f)
    prepare_jax(f.compilation_cache, 1, decoding_only=True)
    run = model_directory(f.workdir, f.checkpoint).absolute()
    languages = f.source_language, f.target_language
    example = load_example(run, f.checkpoint, f.source, f.target, *languages)
    content = attention_html(f"{run.name} ({f.checkpoint})", example).encode()
    with open_atomic(f.output, f.overwrite) as file:
        file.write(content)
    print(f"{f.output}: {len(content) / 1000:,.0f} kB", file=sys.stderr)
    if f.npz:
        write_arrays(f.npz, example.attention, f.overwrite)


def define_flags() -> None:
    define_model("workdir", None, "The run or model of another project.", required=True)
    flags.DEFINE_string("checkpoint", "best", "best | latest | average | a step | a named average.")
    flags.DEFINE_string("source", None, "The source sentence.", required=True)
    flags.DEFINE_string("target", None, "The target sentence; by default the model's translation.")
    flags.DEFINE_string("source_language", "", "Language of the source, as in decode.py.")
    flags.DEFINE_string("target_language", "", "Language of the target, as in decode.py.")
    define_path("output", "attention.html", "The HTML file to write.")
    define_path("npz", "", "A .npz file for the arrays and pieces.")
    flags.DEFINE_bool("overwrite", False, "Replace existing files.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
