"""Attention costs n²

Claim: a self-attention layer of width d takes O(n² d) operations for n positions and a recurrent
layer O(n d²), in n sequential steps; self-attention is faster where n is smaller than d (Vaswani
et al. 2017, section 4 and table 1).

Measurement: the forward and backward pass of one self-attention layer with four heads and of one
GRU, both of width 128, for one sequence of n positions. The time is the median of several rounds,
on a machine that may run other work; the memory is that of the temporary arrays of the compiled
program, as the compiler states it.

Rule, in each seed: over the last three lengths the attention's time grows at least as n^1.5 and
its memory at least as n^1.7; time and memory of the GRU grow at most as n^1.3. At each n below the
width, attention takes less time than the GRU. At the longest n it takes more time and more memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from seq2seq.model.attention import AttentionParams, multi_head_attention, project_keys_values
from seq2seq.model.gru import GruParams, gru
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread
from seq2seq.scripts.experiments.timing import crossing, growth, median_seconds

CLAIM = "Attention costs n²: beyond some length it costs more than the n steps of an RNN."
ARMS = ("attention", "gru")
WIDTH, HEADS = 128, 4
LENGTHS = {"tiny": (8, 16, 32), "full": (16, 32, 64, 128, 256, 512, 1024, 2048)}
ROUNDS = {"tiny": 1, "full": 9}


def attention_layer(params: AttentionParams, x: jax.Array) -> jax.Array:
    """Self-attention without a mask."""
    return multi_head_attention(params, x, project_keys_values(params, x))[0]


def gru_layer(params: GruParams, x: jax.Array) -> jax.Array:
    """All states of a GRU that starts at the first position."""
    return gru(params, x, jnp.zeros(x.shape[:2], bool).at[:, 0].set(True))


def random_params(arm: str, key: jax.Array) -> AttentionParams | GruParams:
    """Normal parameters of a layer, of the standard deviation 1/√WIDTH."""
    kind: Any
    shapes: tuple[tuple[int, ...], ...]
    if arm == "attention":
        kind, head = AttentionParams, (HEADS, WIDTH // HEADS)
        shapes = (WIDTH, *head), (WIDTH, *head), (WIDTH, *head), (*head, WIDTH)
    else:
        kind, gates = GruParams, (WIDTH, 3, WIDTH)
        shapes = gates, gates, (3, WIDTH), (WIDTH,)
    keys = jax.random.split(key, len(shapes))
    return kind(*(WIDTH**-0.5 * array for array in map(jax.random.normal, keys, shapes)))


def passes(arm: str, params: AttentionParams | GruParams, x: jax.Array) -> Any:
    """The gradients by parameters and inputs of the sum of squared outputs."""
    layer: Callable[..., jax.Array] = attention_layer if arm == "attention" else gru_layer
    return jax.grad(lambda *inputs: jnp.square(layer(*inputs)).sum(), argnums=(0, 1))(params, x)


def measure(arm: str, seed: int, size: str) -> Result:
    """The seconds and the bytes of temporary memory of a layer at each length."""
    params, key = random_params(arm, jax.random.key(seed)), jax.random.key(seed + 1)
    seconds, memory = [], []
    for length in LENGTHS[size]:
        x = jax.random.normal(key, (1, length, WIDTH))
        compiled = jax.jit(partial(passes, arm)).lower(params, x).compile()
        memory.append(cast(Any, compiled.memory_analysis()).temp_size_in_bytes)
        seconds.append(median_seconds(partial(compiled, params, x), ROUNDS[size]))
    return {"lengths": LENGTHS[size], "seconds": seconds, "memory": memory}


def judge(results: Results) -> list[Check]:
    lengths = results[ARMS[0]][0]["lengths"]

    def exponents(arm: str, name: str) -> list[float]:
        return [growth(lengths, result[name]) for result in results[arm]]

    def grows(name: str, least: float) -> Check:
        attention, recurrent = (exponents(arm, name) for arm in ARMS)
        measured = f"n^{spread(attention)} with attention and n^{spread(recurrent)} with the GRU"
        return Check(f"{name}: {measured}", min(attention) >= least and max(recurrent) <= 1.3)

    def pairs_of(name: str) -> list[tuple[list[float], list[float]]]:
        runs = (results[arm] for arm in ARMS)
        return [(first[name], second[name]) for first, second in zip(*runs, strict=True)]

    def crosses(name: str) -> Check:
        pairs = pairs_of(name)
        places = [crossing(lengths, *pair) for pair in pairs]
        crossings = [place for place in places if place is not None]
        where = f"from n = {spread(crossings, 0)} on" if crossings else "at no measured length"
        if crossings and max(crossings) <= lengths[0]:
            where = f"already at n = {lengths[0]}"
        text = (
            f"{name}: attention exceeds the GRU {where} (in {len(crossings)} of {len(pairs)} seeds)"
        )
        figure = f"attention takes longer than a GRU {where}" if name == "seconds" else ""
        return Check(text, all(a[-1] > b[-1] for a, b in pairs), figure)

    ratios = [
        max(a / b for n, a, b in zip(lengths, *pair, strict=True) if n < WIDTH)
        for pair in pairs_of("seconds")
    ]
    return [
        grows("seconds", 1.5),
        grows("memory", 1.7),
        Check(
            f"below n = {WIDTH} attention takes at most {spread(ratios)} of the GRU's time",
            max(ratios) < 1,
        ),
        crosses("seconds"),
        crosses("memory"),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("seconds, forward and backward", "temporary memory, bytes")
    for axis, name in zip(axes, ("seconds", "memory"), strict=True):
        for arm in ARMS:
            lengths = results[arm][0]["lengths"]
            curve(axis, lengths, [result[name] for result in results[arm]], arm)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("n")
    axes[0].legend()
    return figure
