"""Write one HTML page with the attention weights of every layer and head for one sentence.

    python scripts/attention_page.py --workdir=RUN --source='나는 밥을 먹었다.' --output=a.html
The page needs no network. --target is a given translation; by default the model translates.
--npz=FILE.npz writes the arrays encoder, decoder and cross [layers, heads, target, source].
"""

import sys
from pathlib import Path

import numpy as np
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from decoding.attention import Attention
from decoding.translator import Translator
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.errors import CONFIGURATION, DATA, UserError
from runtime.files import check_outputs, open_atomic
from runtime.path_flags import define_path
from scripts.pages.attention_data import attention_section, view_data
from scripts.pages.template import page, text

STYLES = ("page.css", "attention.css")
SCRIPTS = ("attention_maps.js", "attention.js")


def attention_html(name: str, found: Attention, source: str, target: str) -> str:
    """The page of the weights of a pair, whose model has a name."""
    body = f"<h1>Attention of {text(name)}</h1>\n"
    body += attention_section(view_data(found, source, target))
    return page(f"Attention of {name}", body, STYLES, SCRIPTS)


def target_text(translator: Translator, found: Attention) -> str:
    """The text of the target pieces of `found`."""
    ids = [translator.target_tokenizer.id_of(piece) for piece in found.target[:-1]]
    return translator.target_tokenizer.decode([one for one in ids if one is not None])


def write_arrays(path: str, found: Attention) -> None:
    """Write the fields of `found` as a .npz file."""
    with open_atomic(path) as file:
        np.savez_compressed(file, **{name: np.array(one) for name, one in found._asdict().items()})


def check_flags(f: flags.FlagValues) -> None:
    """UserError for flags that are invalid for any model; nothing is loaded yet."""
    for name, value in (("source", f.source), ("target", f.target)):
        if value is not None and (not value.strip() or "\n" in value.strip()):
            raise UserError(
                DATA, f"--{name} is invalid: expected one sentence, got {value[:40]!r}; give a text"
            )
    if f.npz and not f.npz.endswith(".npz"):
        raise UserError(
            CONFIGURATION, f"--npz is invalid: expected FILE.npz, got {f.npz!r}; rename the file"
        )
    check_outputs(filter(None, (f.output, f.npz)), f.overwrite)


def main() -> None:
    f = flags.FLAGS
    check_flags(f)
    prepare_jax(f.compilation_cache, 1)
    run = Path(f.workdir).expanduser().absolute()
    translator = Translator.load(run, f.checkpoint, nbest=1, samples=0)
    found = translator.attention(f.source, f.target)
    target = target_text(translator, found) if f.target is None else f.target
    content = attention_html(f"{run.name} ({f.checkpoint})", found, f.source, target).encode()
    with open_atomic(f.output) as file:
        file.write(content)
    print(f"{f.output}: {len(content) / 1000:,.0f} kB", file=sys.stderr)
    if f.npz:
        write_arrays(f.npz, found)


def define_flags() -> None:
    define_path("workdir", None, "The run or MarianMT directory.", required=True)
    flags.DEFINE_string("checkpoint", "best", "best | latest | average | a step | a named average.")
    flags.DEFINE_string("source", None, "The source sentence.", required=True)
    flags.DEFINE_string("target", None, "The target sentence; by default the model's translation.")
    define_path("output", None, "The HTML file to write.", required=True)
    define_path("npz", "", "A .npz file for the arrays and pieces.")
    flags.DEFINE_bool("overwrite", False, "Replace existing files.")


if __name__ == "__main__":
    run_command(define_flags, main)
