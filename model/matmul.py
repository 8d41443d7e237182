"""The matmul of values with weights, in the dtype of the weights, forward and backward.

Axes: D what is summed over · F the weight's other axes.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def matmul(
    x: Float[Array, "... D"], weight: Float[Array, "D ..."], bias: Float[Array, "..."] | None = None
) -> Float[Array, "..."]:
    """x W + b: the axes of F take the place of x's last one.

    The products are of the weight's dtype, their sums at least float32, the result of x's dtype:
    bfloat16 weights make of float32 values a bfloat16 matmul, at half the cost where the hardware
    knows it.
    """
    if jnp.finfo(weight.dtype).bits < 32:
        result = narrow_matmul(x, weight)
    else:
        result = jnp.tensordot(x.astype(weight.dtype), weight, 1).astype(x.dtype)
    return result if bias is None else result + bias.astype(x.dtype)


def products(x: Array, y: Array, of_x: Iterable[int], of_y: Iterable[int]) -> Float[Array, "..."]:
    """The products of x and y summed in float32 over the axes `of_x` and `of_y`."""
    axes = ((tuple(of_x), tuple(of_y)), ((), ()))
    return jax.lax.dot_general(x, y, axes, preferred_element_type=jnp.float32)


@jax.custom_vjp
def narrow_matmul(x, weight):
    """`matmul` whose gradients, too, are sums of products in the weight's dtype.

    (JAX's own transposition of such a product multiplies in float32.)
    """
    return products(x.astype(weight.dtype), weight, [x.ndim - 1], [0]).astype(x.dtype)


def forward(x, weight):
    """What is kept is half of x, and its dtype as an array of no axes."""
    return narrow_matmul(x, weight), (x.astype(weight.dtype), weight, jnp.zeros((), x.dtype))


def backward(saved, gradient):
    x, weight, like = saved
    gradient, batch = gradient.astype(weight.dtype), x.ndim - 1
    of_x = products(gradient, weight, range(batch, gradient.ndim), range(1, weight.ndim))
    of_weight = products(x, gradient, range(batch), range(batch))
    return of_x.astype(like.dtype), of_weight.astype(weight.dtype)


narrow_matmul.defvjp(forward, backward)


def cast_weights(params: Any, dtype: str) -> Any:
    """FeedForwardParams or AttentionParams with weights of another dtype; biases stay."""
    weights = {name: p for name, p in params._asdict().items() if not name.endswith("bias")}
    return params._replace(**{name: weight.astype(dtype) for name, weight in weights.items()})
