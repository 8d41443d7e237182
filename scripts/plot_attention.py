"""Plot the cross-attention weights of every decoder layer, averaged over heads.

    python scripts/plot_attention.py --workdir=RUN --source='나는 밥을 먹었다.' --output=a.png
Needs pip install -e '.[viz]'. The target is the translation of the run.
Characters that matplotlib's font lacks are drawn as boxes: set another font in a matplotlibrc.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from decoding.translator import Translator
from model.scoring import cross_attention_weights
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.errors import OUTPUT, UserError
from runtime.path_flags import define_path


def cross_attention(translator: Translator, source: str) -> tuple[np.ndarray, list[list[str]]]:
    """Weights [layers, T, S] of one teacher-forced pass, and the pieces of source and target."""
    model, variables = translator.engine.models[0], translator.engine.variables[0]
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    texts = source, translator.translate([source])[0]
    end = model.config.end_id
    ids = [[*one.encode(text), end] for one, text in zip(tokenizers, texts, strict=True)]
    inputs = jnp.array([ids[0]]), jnp.array([[model.config.start_id, *ids[1][:-1]]])
    segments = (jnp.ones_like(side) for side in inputs)
    _, sown = model.apply(variables, *inputs, *segments, mutable="intermediates")
    weights = [
        cross_attention_weights(sown, f"layers_{layer}")[0].mean(axis=0)
        for layer in range(model.config.decoder_layers)
    ]
    pieces = [
        [*(one.decode([i]) or "▁" for i in side[:-1]), "</s>"]
        for one, side in zip(tokenizers, ids, strict=True)
    ]
    return np.array(weights), pieces


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
    weights, (source, target) = cross_attention(translator, f.source)
    figure, axes = plt.subplots(1, len(weights), figsize=(5 * len(weights), 5), squeeze=False)
    for layer, (axis, values) in enumerate(zip(axes[0], weights, strict=True)):
        axis.imshow(values, vmin=0.0, vmax=1.0, cmap="Blues")
        axis.set_xticks(range(len(source)), source, rotation=90)
        axis.set_yticks(range(len(target)), target)
        axis.set_title(f"decoder layer {layer}")
    figure.tight_layout()
    figure.savefig(f.output)


def define_flags() -> None:
    define_path("workdir", None, "The run directory.", required=True)
    flags.DEFINE_string("source", None, "The source sentence.", required=True)
    define_path("output", "attention.png", "The output image.")


if __name__ == "__main__":
    run_command(define_flags, main)
