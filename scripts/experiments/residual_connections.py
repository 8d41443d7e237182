"""Residual connections and layer norm carry the gradient

Claim: residual connections and layer normalisation (Vaswani et al. 2017, section 3.1) keep the
gradient of deep stacks in range. Post-norm needs warm-up, pre-norm does not (Xiong et al. 2020).

Measurement: the gradient norm of each of 8 encoder layers at random parameters: post-norm,
pre-norm, and post-norm without residual connections, without norms, and without both. Then models
with 6 encoder layers learn to reverse sequences at a constant learning rate of 0.003 without
clipping: all with a warm-up over a quarter of the steps, post-norm and pre-norm also without it.

Rule, in each seed: with both parts, the gradient norms of the layers differ by less than a factor
of 10; without either part, and without both, by more than 10. With warm-up, post-norm and pre-norm
end below 0.5 nats per token, and models without either part, and without both, do not. Without
warm-up, pre-norm ends below 0.5 and post-norm does not. NaN is above any limit.

Remark: without residual connections, layer norm keeps the gradients of random parameters in range,
but the model does not learn. Without warm-up, post-norm ends higher in each seed, once below 0.5.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from seq2seq.config.training_config import TrainingConfig
from seq2seq.model.layers import LayerNorm
from seq2seq.model.transformer import Sublayer, Transformer
from seq2seq.scripts.experiments.figures import curve, panels, smoothed
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values
from seq2seq.scripts.experiments.small_model import (
    Arguments,
    Call,
    Options,
    Variant,
    batch_of,
    is_call,
    small_config,
    small_training,
    train_model,
)
from seq2seq.scripts.experiments.tasks import reversal
from seq2seq.training.parameters import init_params
from seq2seq.training.step import loss_sums

CLAIM = "Residual connections and layer norm carry the gradient; post-norm needs warm-up."
ARMS = ("post", "pre", "no residuals", "no norms", "neither")
LAYERS = 8
DEPTH, STEPS = {"tiny": 1, "full": 6}, {"tiny": 30, "full": 400}
LEARNED = 0.5  # nats per token: the task is learned


def measure(arm: str, seed: int, size: str) -> Result:
    """The gradient norms of the layers, and the losses of trainings with and without warm-up."""
    result: Result = {"gradients": gradient_norms(arm, seed)}
    task, steps = reversal(), STEPS[size]
    warmups = {"warmup": steps // 4} | ({"no_warmup": 1} if arm in ARMS[:2] else {})
    for name, warmup in warmups.items():
        model = encoder_variant(arm, DEPTH[size])
        choices: dict[str, Any] = {"schedule": "constant", "warmup_steps": warmup, "clip_norm": 0.0}
        trained = train_model(model, task, small_training(seed, steps, **choices))
        result[name] = float(trained.losses[-steps // 10 :].mean())
        result[f"{name}_losses"] = smoothed(trained.losses)
    return result


def encoder_variant(arm: str, layers: int) -> Transformer:
    """The model of an arm; two decoder layers with both parts."""
    norm = "pre" if arm == "pre" else "post"
    config = small_config(reversal(), norm=norm, num_layers=layers, num_decoder_layers=2)
    return Transformer(config) if arm in ARMS[:2] else Variant(config, remove_parts(arm))


def gradient_norms(arm: str, seed: int) -> list[float]:
    """The gradient norm of each encoder layer's parameters before training."""
    task = reversal()
    model = encoder_variant(arm, LAYERS)
    batch = batch_of(task, *task.sample(np.random.default_rng(seed), 64))
    batch = jax.tree.map(jnp.asarray, batch)
    params = init_params(model, jax.random.key(seed))

    @jax.jit
    def norms(params: Any) -> jax.Array:
        def loss(params: Any) -> jax.Array:
            sums = loss_sums(model, params, batch, TrainingConfig(label_smoothing=0.0), None)
            return sums.loss / sums.tokens

        encoder = jax.grad(loss)(params)["encoder"]
        layers = [encoder[f"layers_{i}"] for i in range(LAYERS)]
        return jnp.stack([optax.global_norm(layer) for layer in layers])

    return norms(params).tolist()


def remove_parts(arm: str) -> Call:
    """An interceptor: norm(f(x)), x + f(x) or f(x) instead of norm(x + f(x)) in the encoder."""

    def replace_call(original: Call, arguments: Arguments, options: Options, context: Any) -> Any:
        if context.module.path[:1] == ("encoder",):
            if arm != "no norms" and is_call(context, Sublayer, "add"):
                arguments = (jnp.zeros_like(arguments[0]), *arguments[1:])
            if arm != "no residuals" and is_call(context, LayerNorm):
                return arguments[0]
        return original(*arguments, **options)

    return replace_call


def judge(results: Results) -> list[Check]:
    factors, sizes = {}, {}
    for arm in ARMS:
        gradients = np.array([result["gradients"] for result in results[arm]], float)
        factors[arm] = gradients.max(axis=1) / np.maximum(gradients.min(axis=1), 1e-30)
        factors[arm] = np.nan_to_num(factors[arm], nan=np.inf)
        sizes[arm] = gradients.mean(axis=1)

    def measured(arm: str) -> str:
        return f"by a factor of {np.mean(factors[arm]):.3g} (mean norm {np.mean(sizes[arm]):.2g})"

    warm = {arm: values(results, arm, "warmup") for arm in ARMS}
    cold = {arm: values(results, arm, "no_warmup") for arm in ARMS[:2]}
    # NaN < LEARNED is false: a training that has diverged has not learned the task.
    learned = {arm: [loss < LEARNED for loss in losses] for arm, losses in warm.items()}
    without = {arm: [loss < LEARNED for loss in losses] for arm, losses in cold.items()}

    def described(arm: str) -> str:
        with_it, without_it = spread(warm[arm]), spread(cold[arm])
        return f"{arm}-norm ends at {with_it} nats with and {without_it} without warm-up"

    ends = ", ".join(f"{spread(warm[arm])} nats ({arm})" for arm in ARMS[2:])
    return [
        Check(
            f"gradient norms of {LAYERS} layers differ {measured('post')} with post-norm and "
            f"{measured('pre')} with pre-norm",
            bool(max(factors["post"].max(), factors["pre"].max()) < 10),
            f"gradient norms of post-norm differ by a factor of {np.mean(factors['post']):.3g}",
        ),
        *(
            Check(f"{arm}: they differ {measured(arm)}", bool(factors[arm].min() > 10))
            for arm in ARMS[2:]
        ),
        Check(f"training with warm-up ends at {ends}", not any(any(learned[a]) for a in ARMS[2:])),
        Check(described("post"), all(learned["post"]) and not any(without["post"])),
        Check(described("pre"), all(learned["pre"] + without["pre"])),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("gradient norm over encoder layers", "training loss")
    for arm in ARMS:
        runs = [result["gradients"] for result in results[arm]]
        curve(axes[0], range(1, LAYERS + 1), runs, arm)
        for name in ("warmup", "no_warmup")[: 2 if arm in ARMS[:2] else 1]:
            losses = [result[f"{name}_losses"] for result in results[arm]]
            label = arm if name == "warmup" else f"{arm}, no warm-up"
            curve(axes[1], np.linspace(0, 1, len(losses[0])), losses, label)
    axes[0].set(yscale="log", xlabel="layer")
    axes[1].set_xlabel("share of the training")
    axes[1].legend(fontsize=6, loc="upper right", ncols=2, bbox_to_anchor=(1, 0.95))
    axes[1].set_ylim(0, 6)
    return figure
