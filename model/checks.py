"""Checks of the arguments of public functions, made once when a function is traced.

JAX broadcasts and converts silently: it accepts a float mask as boolean and clamps an id beyond a
table. These checks raise TypeError (dtype) or ValueError (shape or value) that names the
argument. They read only dtypes and shapes, so they cost nothing at run time.

The annotations of a function state its shapes; `checked` compares arguments with them. The other
checks are of values, and of what functions of the user return.
"""

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from types import NoneType
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

DTYPES = {"boolean": jnp.bool_, "integer": jnp.integer, "floating": jnp.floating}
KINDS = {"Bool": "boolean", "Int": "integer", "Float": "floating"}  # of annotations


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


Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """`function` with checks of the arrays that its annotations describe, as its arguments and in
    NamedTuples among them.

    An axis has one size in all arguments; one with "#" may also be 1. So nothing is broadcast that
    the annotation does not name.
    """
    annotations, signature = function.__annotations__, inspect.signature(function)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        sizes: dict[str, int] = {}  # of the axes
        for name, value in signature.bind(*arguments, **named).arguments.items():
            _check_annotation(name, value, annotations.get(name), sizes)
        return function(*arguments, **named)

    return cast(Function, call)


def _check_annotation(name: str, value: Any, annotation: Any, sizes: dict[str, int]) -> None:
    choices = getattr(annotation, "__args__", (annotation,))  # those of a union
    annotation = next((choice for choice in choices if hasattr(choice, "dim_str")), None)
    if annotation is not None and not (value is None and NoneType in choices):
        check_array(name, value, KINDS[annotation.dtype.__name__], annotation.dim_str)
        _check_axes(name, value, annotation.dim_str, sizes)
    elif hasattr(value, "_fields"):
        for field, array in zip(value._fields, value, strict=True):
            _check_annotation(f"{name}.{field}", array, type(value).__annotations__[field], sizes)


def _check_axes(name: str, x: Any, axes: str, sizes: dict[str, int]) -> None:
    """Compare the shape of x with the sizes of its axes; add those that `sizes` does not have."""
    names = axes.split()
    if "..." in names:
        place = names.index("...")
        names[place : place + 1] = ["_"] * (len(x.shape) - len(names) + 1)
    for axis, size in zip(names, x.shape, strict=True):
        axis_name = axis.removeprefix("#")
        if axis == "_" or (axis != axis_name and size == 1):
            continue
        expected = int(axis) if axis.isdigit() else sizes.setdefault(axis_name, size)
        if size != expected:
            or_1 = " or 1" if axis != axis_name else ""
            raise ValueError(
                f"{name} must have the axes [{', '.join(axes.split())}] with {axis_name} = "
                f"{expected}{or_1}; got shape {x.shape}"
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
