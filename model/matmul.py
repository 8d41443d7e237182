"""The matmul of activations with weights, in the dtype of the weights, forward and backward.

Axes: D the contracted axis · F the weight's other axes.
By default JAX multiplies float32 in TF32 on a GPU and in bfloat16 on a TPU. Here products of
float32 have the precision FULL. Gradients inherit the precision of their product.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FULL = jax.lax.Precision.HIGHEST  # float32 on every platform; no effect on a CPU


def matmul(
    x: Float[Array, "... D"], weight: Float[Array, "D ..."], bias: Float[Array, "..."] | None = None
) -> Float[Array, "..."]:
    """x W + b; the axes F replace the last axis of x.

    Operands are multiplied in the weight's dtype and accumulated in at least float32. The result
    has the dtype of x. With bfloat16 weights, float32 activations are multiplied in bfloat16, at
    half the cost if the hardware supports it.
    """
    if is_narrow(weight):
        result = narrow_matmul(x, weight)
    else:
        result = jnp.tensordot(x.astype(weight.dtype), weight, 1, precision=FULL).astype(x.dtype)
    return result if bias is None else result + bias.astype(x.dtype)


def matmul_transposed(
    x: Float[Array, "... D"], weight: Float[Array, "F D"], bias: Float[Array, " F"] | None = None
) -> Float[Array, "... F"]:
    """`matmul(x, weight.T, bias)` for inference: its gradients are JAX's own.

    On a CPU XLA packs the weight in each product, which takes less time in this order of the axes:
    the product with a table of 50,000 tokens is up to twice as fast (benchmarks/decode_speed.md).
    """
    rows = x.reshape(-1, x.shape[-1])  # with more axes, XLA copies the weight to [D, F] on a CPU
    if is_narrow(weight):
        result = narrow_product(rows, weight, 1)
    else:
        axes = (1,), (1,)
        result = jnp.tensordot(rows.astype(weight.dtype), weight, axes, precision=FULL)
    result = result.astype(x.dtype).reshape(*x.shape[:-1], len(weight))
    return result if bias is None else result + bias.astype(x.dtype)


def is_narrow(weight: Array) -> bool:
    """Whether products with this weight have less precision than float32."""
    return jnp.finfo(weight.dtype).bits < 32


def activations_precision(weight: Array) -> jax.lax.Precision:
    """The precision of products of two float32 activations in a layer with this weight.

    FULL if the weight is float32. In a layer with bfloat16 weights it is JAX's default, which uses
    the matrix units of GPU and TPU: activations there are results of products in bfloat16, so
    rounding them to TF32 or bfloat16 does not add an error of another order.
    """
    return jax.lax.Precision.DEFAULT if is_narrow(weight) else FULL


def contract(
    x: Array, y: Array, x_axes: Iterable[int], y_axes: Iterable[int]
) -> Float[Array, "..."]:
    """The products of x and y summed in float32 over the axes `x_axes` and `y_axes`."""
    axes = ((tuple(x_axes), tuple(y_axes)), ((), ()))
    return jax.lax.dot_general(x, y, axes, preferred_element_type=jnp.float32)


@jax.custom_vjp
def narrow_matmul(x: Float[Array, "... D"], weight: Float[Array, "D ..."]) -> Float[Array, "..."]:
    """`matmul` whose gradients are also computed from products in the weight's dtype.

    (JAX's own transposition of such a product multiplies in float32.)
    """
    return narrow_product(x, weight, 0)


def narrow_product(x: Float[Array, "... D"], weight: Array, axis: int) -> Float[Array, "..."]:
    """The product of x, in the weight's dtype, with the weight over this axis of the weight."""
    narrow, one_row = x.astype(weight.dtype), x.ndim > 1 and x.size == x.shape[-1]
    if (
        one_row
    ):  # as two: on a CPU, XLA's product of one row in bfloat16 takes up to 16 times as long
        narrow = jnp.repeat(narrow, 2, axis=0)
    product = contract(narrow, weight, [x.ndim - 1], [axis]).astype(x.dtype)
    return product[:1] if one_row else product


def narrow_matmul_forward(
    x: Float[Array, "... D"], weight: Float[Array, "D ..."]
) -> tuple[Float[Array, "..."], tuple[Array, Array, Any]]:
    """Residuals: x in low precision, the weight, and a scalar that carries the dtype of x."""
    return narrow_matmul(x, weight), (x.astype(weight.dtype), weight, jnp.zeros((), x.dtype))


def narrow_matmul_backward(
    residuals: tuple[Array, Array, Any], gradient: Float[Array, "..."]
) -> tuple[Float[Array, "... D"], Float[Array, "D ..."]]:
    x, weight, like = residuals
    gradient, batch = gradient.astype(weight.dtype), x.ndim - 1
    x_gradient = contract(gradient, weight, range(batch, gradient.ndim), range(1, weight.ndim))
    if batch == 1:
        # XLA's CPU back end (jax 0.10.2, 0.12) folds the transposition into a product that it
        # cannot compute: DotThunk BF16 x BF16 = F32.
        weight_gradient = contract(jax.lax.optimization_barrier(x.T), gradient, [1], [0])
    else:
        weight_gradient = contract(x, gradient, range(batch), range(batch))
    return x_gradient.astype(like.dtype), weight_gradient.astype(weight.dtype)


narrow_matmul.defvjp(narrow_matmul_forward, narrow_matmul_backward)


def cast_weights(params: Any, dtype: str) -> Any:
    """A NamedTuple of parameters with the weights, not the biases, cast to `dtype`."""
    present = {name: p for name, p in params._asdict().items() if p is not None}
    weights = {name: p for name, p in present.items() if not name.endswith("bias")}
    return params._replace(**{name: weight.astype(dtype) for name, weight in weights.items()})
