"""Checks of the arguments of public functions, made once when a function is traced.

JAX broadcasts and converts silently: it accepts a float mask as boolean and clamps an id beyond a
table. These checks raise TypeError (dtype) or ValueError (shape or value) that names the
argument. They read only dtypes and shapes, so they cost nothing at run time.
"""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

DTYPES = {"boolean": jnp.bool_, "integer": jnp.integer, "floating": jnp.floating}


def check_array(name: str, x: Any, dtype: str, axes: str) -> None:
    """`dtype` starts with a key of DTYPES; `axes` are names separated by spaces, "..." for any."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise TypeError(f"{name} must be an array [{axes}]; got {type(x).__name__}")
    if not jnp.issubdtype(x.dtype, DTYPES[dtype.split(",")[0]]):
        raise TypeError(f"{name} must be {dtype}; got {x.dtype}")
    names = axes.split()
    fits = len(x.shape) >= len(names) - 1 if "..." in names else len(x.shape) == len(names)
    if not fits:
        raise ValueError(f"{name} must have the axes [{', '.join(names)}]; got shape {x.shape}")


def check_shape(name: str, x: Any, shape: tuple[int, ...], description: str) -> None:
    """`description` says which argument the expected shape comes from."""
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} must have the shape {tuple(shape)}, {description}; got {x.shape}")


def check_length(name: str, x: Any, longest: int) -> None:
    """The tokens [B, T] must have positions: JAX would give those beyond a table its last row."""
    if x.shape[1] > longest:
        raise ValueError(
            f"{name} must have at most max_length={longest} tokens in a row; got shape {x.shape}"
        )


def check_mask(mask: Any, shape: tuple[int, ...], axes: str = "B H T S") -> None:
    """An attention mask must broadcast to the axes of the scores, its last one without
    broadcasting."""
    _check_for_scores("mask", mask, "boolean, True = may attend", shape, axes)


def check_bias(bias: Any, shape: tuple[int, ...]) -> None:
    """As `check_mask`, for a bias on attention scores."""
    _check_for_scores("bias", bias, "floating", shape, "B H T S")


def _check_for_scores(name: str, x: Any, dtype: str, shape: tuple[int, ...], axes: str) -> None:
    check_array(name, x, dtype, axes)
    sizes = zip(x.shape[:-1], shape[:-1], strict=True)
    if x.shape[-1] != shape[-1] or any(size not in (1, full) for size, full in sizes):
        raise ValueError(
            f"{name} must broadcast to [{', '.join(axes.split())}] = {shape} without its last axis "
            f"being broadcast; got shape {x.shape}"
        )


def check_memory(memory: Any, kind: type[tuple[Any, ...]], entries: int, expected: str) -> None:
    """The memory of a decoder layer or stack is a tuple, not the encoder's output."""
    if not isinstance(memory, kind) or len(memory) != entries:
        got = f"shape {memory.shape}" if hasattr(memory, "shape") else type(memory).__name__
        raise TypeError(f"memory must be {expected}; got {got}")


def check_choice(name: str, got: Any, choices: Collection[str]) -> None:
    if got not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {got!r}")


def check_sentences(start_tokens: Any, limits: Any) -> None:
    """The arguments of a search that have one entry for each sentence."""
    check_array("start_tokens", start_tokens, "integer", "B")
    if not len(start_tokens):
        raise ValueError("start_tokens must hold at least one sentence; got none")
    check_array("limits", limits, "integer", "B")
    check_shape("limits", limits, start_tokens.shape, "one for each of start_tokens")


def checked_step(step: Callable[..., Any], end_id: int) -> Callable[..., Any]:
    """The step function of a search, with checks of its results; its logits become float32."""

    def call(tokens: Any, state: Any, *rest: Any) -> tuple[Any, Any]:
        result = step(tokens, state, *rest)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"step must return (logits, state); got {type(result).__name__}")
        logits, after = result
        check_array("logits of step", logits, "floating", "B N V")
        vocab = logits.shape[2]
        check_shape("logits of step", logits, (*tokens.shape, vocab), "[B, N] of its tokens and V")
        if not 0 <= end_id < vocab:
            raise ValueError(
                f"end_id must be from 0 to {vocab - 1}, as step returns logits of "
                f"{vocab} tokens; got {end_id}"
            )
        before_shapes, after_shapes = (jax.tree.map(jnp.shape, tree) for tree in (state, after))
        if before_shapes != after_shapes:
            raise ValueError(
                "step must return a state of the same structure and shapes as its argument, "
                f"{before_shapes}; got {after_shapes}"
            )
        return logits.astype(jnp.float32), after

    return call


def checked_rules(rules: Callable[..., Any]) -> Callable[..., Any]:
    """The rules of a search, with checks of their results; numbers become float32."""

    def call(logits: Any, normalizer: Any, *rest: Any) -> tuple[Any, Any, Any]:
        result = rules(logits, normalizer, *rest)
        if not isinstance(result, tuple | list) or len(result) != 3:
            raise TypeError(
                f"rules must return (logits, normalizer, mask); got {type(result).__name__}"
            )
        new_logits, new_normalizer, mask = result
        check_array("logits of rules", new_logits, "floating", "B N ...")
        check_shape("logits of rules", new_logits, logits.shape, "that of the argument")
        check_array("normalizer of rules", new_normalizer, "floating", "B N ...")
        check_shape("normalizer of rules", new_normalizer, normalizer.shape, "that of the argument")
        check_array("mask of rules", mask, "boolean, True = allowed", "B N V")
        sizes = zip(mask.shape, logits.shape, strict=True)
        if any(size not in (1, full) for size, full in sizes):
            raise ValueError(
                f"mask of rules must broadcast to [B, N, V] = {logits.shape}; got shape "
                f"{mask.shape}"
            )
        return new_logits.astype(jnp.float32), new_normalizer.astype(jnp.float32), mask

    return call
