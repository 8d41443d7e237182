"""Residual connections and layer norm carry the gradient

Claim: residual connections and layer normalisation (Vaswani et al. 2017, section 3.1) keep the
gradient of deep stacks in range. Post-norm needs a warm-up of the learning rate, pre-norm does not
(Xiong et al. 2020).

Measurement: the gradient norm of each of 8 encoder layers at random parameters, with and without
residual connections, and without layer norms. Then models of 6 layers learn to reverse sequences
with a constant learning rate of 0.003, with a warm-up over a quarter of the steps and without.

Rule, in each seed: with both, the gradients of the layers differ by less than a factor of 10;
without residual connections, and without norms, by more than 10, or they differ from those with
both by more than 100. Without warm-up, post-norm ends above 1 nat per token; with warm-up, and with
pre-norm in both cases, training ends below 0.5.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from model.layers import LayerNorm
from model.transformer import Sublayer, Transformer
from scripts.experiments.figures import curve, panels, smoothed
from scripts.experiments.outcome import Check, Result, Results, spread, values
from scripts.experiments.small_model import Variant, batch_of, is_call, small_config, train_model
from scripts.experiments.tasks import reversal
from storage.training_config import TrainingConfig
from training.parameters import init_params
from training.step import loss_sums

NUMBER = 9
CLAIM = "Residual connections and layer norm carry the gradient; post-norm needs warm-up."
ARMS = ("post", "pre", "no residuals", "no norms")
LAYERS = 8
DEPTH, STEPS = {"tiny": 1, "full": 6}, {"tiny": 30, "full": 600}
TRAINED = ("no_warmup", "warmup")


def measure(arm: str, seed: int, size: str) -> Result:
    """The gradient norms of the layers; of post and pre also the losses of trainings."""
    result: Result = {"gradients": gradient_norms(arm, seed)}
    task, steps = reversal(), STEPS[size]
    for name in TRAINED if arm in ARMS[:2] else ():
        model = Transformer(small_config(task, norm=arm, num_layers=DEPTH[size]))
        warmup = steps // 4 if name == "warmup" else 1
        trained = train_model(model, task, seed, steps, schedule="constant", warmup_steps=warmup)
        result[name] = float(trained.losses[-steps // 10 :].mean())
        result[f"{name}_losses"] = smoothed(trained.losses)
    return result


def gradient_norms(arm: str, seed: int) -> list[float]:
    """The gradient norm of each encoder layer's parameters before training."""
    task = reversal()
    norm = "pre" if arm == "pre" else "post"
    config = small_config(task, norm=norm, num_layers=LAYERS, num_decoder_layers=1)
    model = Transformer(config)
    if arm not in ARMS[:2]:
        model = Variant(model, without_residuals if arm == "no residuals" else without_norms)
    batch = batch_of(task, *task.sample(np.random.default_rng(seed), 64))
    params = init_params(model, jax.random.key(seed))

    @jax.jit
    def norms(params):
        def loss(params):
            sums = loss_sums(model, params, batch, TrainingConfig(label_smoothing=0.0), None)
            return sums.loss / sums.tokens

        encoder = jax.grad(loss)(params)["encoder"]
        layers = [encoder[f"layers_{i}"] for i in range(LAYERS)]
        return jnp.stack([optax.global_norm(layer) for layer in layers])

    return norms(params).tolist()


def without_residuals(original, arguments, options, context):
    """An interceptor: norm(f(x)) instead of norm(x + f(x)) in the encoder."""
    if is_call(context, Sublayer, "leave") and context.module.path[0] == "encoder":
        x, *others = arguments
        return original(jnp.zeros_like(x), *others, **options)
    return original(*arguments, **options)


def without_norms(original, arguments, options, context):
    """An interceptor: x + f(x) instead of norm(x + f(x)) in the encoder."""
    if is_call(context, LayerNorm) and context.module.path[0] == "encoder":
        return arguments[0]
    return original(*arguments, **options)


def judge(results: Results) -> list[Check]:
    factors, sizes = {}, {}
    for arm in ARMS:
        gradients = np.array([result["gradients"] for result in results[arm]])
        factors[arm] = gradients.max(axis=1) / np.maximum(gradients.min(axis=1), 1e-30)
        sizes[arm] = gradients.mean(axis=1)

    def is_out_of_range(arm: str) -> bool:
        ratio = sizes[arm] / sizes["post"]
        return bool(((factors[arm] > 10) | (ratio > 100) | (ratio < 0.01)).all())

    def measured(arm: str) -> str:
        return f"by a factor of {np.mean(factors[arm]):.3g} (mean {np.mean(sizes[arm]):.2g})"

    ends = {(arm, name): values(results, arm, name) for arm in ARMS[:2] for name in TRAINED}
    return [
        Check(
            f"gradients of {LAYERS} layers differ {measured('post')} with post-norm and "
            f"{measured('pre')} with pre-norm",
            bool(max(factors["post"].max(), factors["pre"].max()) < 10),
        ),
        *(
            Check(f"with {arm} they differ {measured(arm)}", is_out_of_range(arm))
            for arm in ARMS[2:]
        ),
        Check(
            f"post-norm ends at {spread(ends['post', 'no_warmup'])} nats without and "
            f"{spread(ends['post', 'warmup'])} with warm-up",
            min(ends["post", "no_warmup"]) > 1 and max(ends["post", "warmup"]) < 0.5,
        ),
        Check(
            f"pre-norm ends at {spread(ends['pre', 'no_warmup'])} without and "
            f"{spread(ends['pre', 'warmup'])} with warm-up",
            max(ends["pre", "no_warmup"] + ends["pre", "warmup"]) < 0.5,
        ),
    ]


def draw(results: Results):
    figure, axes = panels("gradient norm over encoder layers", "training loss")
    for arm in ARMS:
        runs = [result["gradients"] for result in results[arm]]
        curve(axes[0], range(1, LAYERS + 1), runs, arm)
    axes[0].set_yscale("log")
    axes[0].legend()
    for arm in ARMS[:2]:
        for name in TRAINED:
            losses = [result[f"{name}_losses"] for result in results[arm]]
            label = f"{arm}, {name.replace('_', ' ')}"
            curve(axes[1], np.linspace(0, 1, len(losses[0])), losses, label)
    axes[1].set_xlabel("share of the training")
    axes[1].legend()
    return figure
