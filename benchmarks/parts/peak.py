"""Part: the measured peak of matrix products, and the measured memory bandwidth."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.parts.measuring import call_seconds
from benchmarks.parts.sizes import Sizes

# Name → dtype and precision of the product.
PRODUCTS = {
    "bfloat16": (jnp.bfloat16, jax.lax.Precision.DEFAULT),
    "float32, JAX's default (TF32 on a GPU, bfloat16 on a TPU)": (
        jnp.float32,
        jax.lax.Precision.DEFAULT,
    ),
    "float32, precision highest": (jnp.float32, jax.lax.Precision.HIGHEST),
}
BANDWIDTH = "memory: read", "memory: read and write"


def peak_rows(sizes: Sizes, deadline: float) -> Iterator[dict[str, Any]]:
    """The fastest square product of each kind, in FLOP/s; bytes/s of a sum and of a copy."""
    for name, (dtype, precision) in PRODUCTS.items():
        yield {"kind": name, "rate": max(product_rates(sizes, dtype, precision)), "unit": "FLOP/s"}
    x = jnp.ones(sizes.bytes_copied // 4, jnp.float32)
    read, write = jax.jit(jnp.sum), jax.jit(lambda x: x + 1)
    seconds = call_seconds({"read": lambda: read(x), "write": lambda: write(x)}, sizes.seconds)
    for name, took, times in zip(BANDWIDTH, seconds.values(), (1, 2), strict=True):
        yield {"kind": name, "rate": times * x.nbytes / took, "unit": "bytes/s"}


def product_rates(sizes: Sizes, dtype: Any, precision: jax.lax.Precision) -> Iterator[float]:
    """FLOP/s of the product of two random n × n matrices, for each n."""
    for n in sizes.matmul:
        x, y = (jax.random.normal(jax.random.key(i), (n, n), dtype) for i in range(2))
        product = jax.jit(lambda x, y: jnp.dot(x, y, precision=precision))
        seconds = call_seconds({"": lambda x=x, y=y, f=product: f(x, y)}, sizes.seconds)
        yield 2 * n**3 / seconds[""]
