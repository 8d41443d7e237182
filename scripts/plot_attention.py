"""Plot the cross-attention weights of every decoder layer, averaged over heads.

    python scripts/plot_attention.py --workdir=RUN --source='나는 밥을 먹었다.' --output=a.png
Needs pip install -e '.[viz]'. The target is the translation of the run.
Characters that matplotlib's font lacks are drawn as boxes: set another font in a matplotlibrc.
"""

import sys
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from decoding.translator import Translator
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.errors import OUTPUT, UserError
from runtime.path_flags import define_path


def main() -> None:
    f = flags.FLAGS
    try:
        import matplotlib
    except ImportError:
        raise UserError(OUTPUT, "plots need matplotlib; pip install -e '.[viz]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    prepare_jax("")
    translator = Translator.load(Path(f.workdir).expanduser(), nbest=1, samples=0)
    found = translator.attention(f.source)
    weights = found.cross.mean(axis=1)
    figure, axes = plt.subplots(1, len(weights), figsize=(5 * len(weights), 5), squeeze=False)
    for layer, (axis, values) in enumerate(zip(axes[0], weights, strict=True)):
        axis.imshow(values, vmin=0.0, vmax=1.0, cmap="Blues")
        axis.set_xticks(range(len(found.source)), found.source, rotation=90)
        axis.set_yticks(range(len(found.target)), found.target)
        axis.set_title(f"decoder layer {layer}")
    figure.tight_layout()
    figure.savefig(f.output)


def define_flags() -> None:
    define_path("workdir", None, "The run directory.", required=True)
    flags.DEFINE_string("source", None, "The source sentence.", required=True)
    define_path("output", "attention.png", "The output image.")


if __name__ == "__main__":
    run_command(define_flags, main)
