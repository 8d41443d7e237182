"""Attention by the kernels of the platform, where they are faster and the arguments fit them.

Axes: B batch · T queries · S keys · H heads · K head width · W = H · K.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from .attention import AttentionOptions, KeysValues, dot_product_attention
from .fused_attention import KernelSettings, attention_by_kernels, fits_kernels
from .gpu_attention import attention_by_gpu_kernels, fits_gpu_kernels
from .placement import MODEL, devices_of_copy
from .platforms import Choices, by_platform

# Choices.attention_kernels → which arguments fit, and the attention.
KERNELS = {
    "tpu": (fits_kernels, attention_by_kernels),
    "triton": (fits_gpu_kernels, attention_by_gpu_kernels),
}


def attend_on_platform(
    queries: Float[Array, "B H T K"],
    keys_values: KeysValues,
    mask: Bool[Array, "#B #H #T S"] | None,
    bias: Float[Array, "#B #H #T S"] | None,
    options: AttentionOptions,
) -> tuple[Float[Array, "B H T K"], None]:
    """`dot_product_attention` without the weights. Devices that share a copy of the model compute
    their heads."""
    keys, values = keys_values
    devices = devices_of_copy()
    own_queries, own_keys = queries, keys
    if devices > 1:
        own_queries, own_keys = (x[:, : x.shape[1] // devices] for x in (queries, keys))

    def kernels(choices: Choices) -> str:
        name = choices.attention_kernels
        supported = name and options.drop is None and bias is None
        return name if supported and KERNELS[name][0](own_queries, own_keys, mask) else ""

    def attend(name: str) -> Float[Array, "B H T K"]:
        if not name:
            return dot_product_attention(queries, keys, values, mask, bias, options)[0]
        width = queries.shape[-1]
        factor = width**-0.5 if options.scale else 1.0
        settings = KernelSettings(width, factor, options.precision)
        attention = partial(fused_attention, name, settings)
        if devices > 1:  # XLA divides no kernel
            heads = PartitionSpec(None, MODEL)
            attention = jax.shard_map(
                attention,
                in_specs=(heads, heads, heads, PartitionSpec()),
                out_specs=heads,
                axis_names={MODEL},
                check_vma=False,
            )
        return attention(queries, keys, values, mask)

    return by_platform(kernels, attend), None


def fused_attention(
    name: str,
    settings: KernelSettings,
    queries: Float[Array, "B H T K"],
    keys: Float[Array, "B H S K"],
    values: Float[Array, "B H S K"],
    mask: Bool[Array, "#B 1 #T S"] | None,
) -> Float[Array, "B H T K"]:
    """The output of `dot_product_attention` by these kernels, for arguments that fit them."""
    (b, _, t, _), s = queries.shape, keys.shape[2]
    mask = jnp.ones((1, 1, 1, 1), bool) if mask is None else mask
    allowed = jnp.broadcast_to(mask[:, 0].astype(jnp.int8), (b, t, s))  # [B, T, S]

    def join_heads(x: Float[Array, "B H _ K"]) -> Float[Array, "B _ W"]:
        return jnp.swapaxes(x, 1, 2).reshape(b, x.shape[2], -1)

    joined = map(join_heads, (queries, keys, values))
    output = KERNELS[name][1](settings, allowed, *joined)  # [B, T, W]
    return jnp.swapaxes(output.reshape(b, t, -1, settings.head_width), 1, 2)
