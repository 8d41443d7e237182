"""Plot who attends to what: cross-attention of every decoder layer, averaged over heads.

    python scripts/plot_attention.py --workdir=RUN --source='나는 밥을 먹었다.' --output=a.png
Needs pip install -e '.[viz]'. The target is the run's own translation.
A script that matplotlib's font lacks shows as boxes: name another in a matplotlibrc.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from decoding.translator import Translator
from interop.models import load_params, open_model
from model.transformer import Transformer
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.errors import OUTPUT, UserError


def cross_attention(run: Path, source: str) -> tuple[np.ndarray, list[int], list[int]]:
    """Weights [layers, T, S] of one teacher-forced pass, and the ids of both sides with ends."""
    config, (source_tokenizer, target_tokenizer) = open_model(run, "best")
    target = Translator.load(run).translate([source])[0]
    end = config.model.end_id
    source_ids = [*source_tokenizer.encode(source), end]
    target_ids = [*target_tokenizer.encode(target), end]
    inputs = jnp.array([source_ids]), jnp.array([[config.model.start_id, *target_ids[:-1]]])
    segments = (jnp.ones_like(side) for side in inputs)
    _, sown = Transformer(config.model).apply(
        {"params": load_params(run, "best")}, *inputs, *segments, mutable="intermediates"
    )
    decoder = sown["intermediates"]["decoder"]
    layers = [decoder[f"layers_{i}"] for i in range(config.model.decoder_layers)]
    weights = [layer["cross_attention"]["weights"][0][0].mean(axis=0) for layer in layers]
    return np.array(weights), source_ids, target_ids


def main() -> None:
    f = flags.FLAGS
    try:
        import matplotlib
    except ImportError:
        raise UserError(OUTPUT, "plots need matplotlib: pip install -e '.[viz]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    run = Path(f.workdir).expanduser()
    _, tokenizers = open_model(run, "best")
    prepare_jax("")
    weights, *ids = cross_attention(run, f.source)
    source, target = (
        [*(t.decode([i]) or "▁" for i in side[:-1]), "</s>"]
        for t, side in zip(tokenizers, ids, strict=True)
    )
    figure, axes = plt.subplots(1, len(weights), figsize=(5 * len(weights), 5), squeeze=False)
    for layer, (axis, values) in enumerate(zip(axes[0], weights, strict=True)):
        axis.imshow(values, vmin=0.0, vmax=1.0, cmap="Blues")
        axis.set_xticks(range(len(source)), source, rotation=90)
        axis.set_yticks(range(len(target)), target)
        axis.set_title(f"decoder layer {layer}")
    figure.tight_layout()
    figure.savefig(f.output)


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "The run directory.", required=True)
    flags.DEFINE_string("source", None, "The sentence.", required=True)
    flags.DEFINE_string("output", "attention.png", "The picture.")


if __name__ == "__main__":
    run_command(define_flags, main)
