"""The attention kernels of TPU and GPU, interpreted, against `dot_product_attention`."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model import platform_attention as module
from seq2seq.model.attention import (
    AttentionOptions,
    KeysValues,
    attend_to_all,
    causal_mask,
    dot_product_attention,
    segment_mask,
)
from seq2seq.model.fused_attention import KernelSettings, fits_kernels
from seq2seq.model.matmul import FULL
from seq2seq.model.platform_attention import KERNELS, attend_on_platform, fused_attention
from seq2seq.model.platforms import TPU
from seq2seq.model.transformer import Transformer
from seq2seq.training.parameters import parameter_shapes
from tests.support.models.small_transformer import SMALL


def masks(t, s):
    """None, one for all rows, and that of packed rows with padding: some queries see no key."""
    lengths = jnp.array([[30, 50, 20], [0, 100, 7]])
    ends = jnp.cumsum(lengths, axis=1)

    def segments(length):
        places = jnp.arange(length)[None, :, None]
        number = (places >= ends[:, None]).sum(-1) + 1
        return jnp.where(number > 3, 0, number)

    packed = segment_mask(segments(t), segments(s))
    return None, causal_mask(t) if t == s else jnp.ones((1, 1, 1, s), bool), packed


def with_gradients(attend, q, k, v, cotangent):
    """The output, and the gradients of its product with `cotangent` by q, k and v."""
    output, transposed = jax.vjp(attend, q, k, v)
    return output, *transposed(cotangent)


@pytest.mark.parametrize(
    "names, heads, width, t, s, scale, chosen",
    [
        (["tpu", "triton"], 2, 64, 128, 256, True, (0, 1, 2)),
        (["tpu"], 8, 32, 256, 256, False, (2,)),
        (["tpu"], 1, 128, 128, 128, True, (1,)),
        (["tpu"], 2, 64, 640, 640, True, (2,)),
        (["triton"], 1, 32, 192, 64, False, (2,)),
    ],
)
def test_output_and_gradients_are_those_of_the_plain_attention(
    names, heads, width, t, s, scale, chosen
):
    """`chosen` are numbers of `masks`, all of which become an array [B, T, S] for the kernels."""
    random = np.random.default_rng(width)
    arrays = [
        random.normal(size=(2, heads, length, width)).astype(np.float32) for length in (t, s, s, t)
    ]
    settings = KernelSettings(width, width**-0.5 if scale else 1.0, FULL, interpret=True)

    def plain_attention(mask, *arrays):
        return dot_product_attention(*arrays, mask, options=AttentionOptions(scale=scale))[0]

    def kernels(name, mask, *arrays):
        assert KERNELS[name][0](*arrays[:2], mask)
        return fused_attention(name, settings, *arrays, mask)

    @jax.jit
    def outputs_and_gradients(*arrays):
        return [
            [
                with_gradients(partial(attend, mask), *arrays)
                for attend in (plain_attention, *(partial(kernels, name) for name in names))
            ]
            for mask in (masks(t, s)[i] for i in chosen)
        ]

    for plain, *all_fused in outputs_and_gradients(*arrays):
        for fused in all_fused:
            np.testing.assert_allclose(fused[0], plain[0], atol=2e-6)
            for ours, theirs in zip(fused[1:], plain[1:], strict=True):
                np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-5)


def test_bfloat16_is_as_close_to_float32_as_the_plain_attention():
    random = np.random.default_rng(0)
    exact = [random.normal(size=(2, 2, 128, 64)).astype(np.float32) for _ in range(4)]
    narrow = [x.astype(jnp.bfloat16) for x in exact]
    settings = KernelSettings(64, 0.125, jax.lax.Precision.DEFAULT, interpret=True)
    mask = causal_mask(128)

    def plain(q, k, v):
        return dot_product_attention(q, k, v, mask)[0]

    def kernels(name, *arrays):
        return fused_attention(name, settings, *arrays, mask)

    @partial(jax.jit, compiler_options={"xla_allow_excess_precision": False})
    def run(wide, narrow):
        """Results are rounded in between, as XLA otherwise need not do."""
        return [
            with_gradients(*arguments)
            for arguments in (
                (plain, *wide), (plain, *narrow),
                *((partial(kernels, name), *narrow) for name in KERNELS),
            )
        ]  # fmt: skip

    results = jax.device_get(run([x.astype(np.float32) for x in narrow], narrow))
    for name, *arrays in zip(("output", "q", "k", "v"), *results, strict=True):
        a, b, *fused = (x.astype(np.float32) for x in arrays)
        for c in fused:
            assert 0 < abs(c - a).max() <= 1.5 * abs(b - a).max(), name


@pytest.mark.parametrize(
    "dtype, t, s, fits",
    [
        ("float32", 1024, 1024, True),
        ("float32", 128, 1152, False),
        ("bfloat16", 4096, 2048, True),
        ("bfloat16", 128, 2176, False),
        ("bfloat16", 200, 256, False),
        ("bfloat16", 256, 200, False),
    ],
)
def test_long_rows_have_kernels_while_their_keys_fit_on_the_chip(dtype, t, s, fits):
    """The largest of these were compiled for v4, v5e, v5p and v6e."""
    queries, keys = (
        jax.device_put(np.zeros((1, 8, length, 64), jnp.dtype(dtype))) for length in (t, s)
    )
    assert fits_kernels(queries, keys, None) == fits


def test_the_kernels_are_used_only_where_they_compute_the_same(monkeypatch):
    """As in a program for a TPU, but interpreted."""
    monkeypatch.setattr(module, "by_platform", lambda choose, run: run(choose(TPU)))
    monkeypatch.setattr(module, "KernelSettings", partial(KernelSettings, interpret=True))
    causal = np.tri(128, dtype=bool)[None, None]
    usual = {"mask": jax.device_put(causal), "bias": None, "options": AttentionOptions()}
    of_heads = jax.device_put(causal & np.array([True, False]).reshape(1, 2, 1, 1))
    cases = (
        (2, 64, {}),
        (2, 64, {"options": AttentionOptions(scale=False)}),
        (2, 64, {"bias": jax.device_put(np.float32(np.arange(128).reshape(1, 1, 1, 128)))}),
        (2, 64, {"mask": of_heads}),
        (2, 64, {"options": AttentionOptions(lambda weights: 0.5 * weights)}),
        (3, 64, {}),  # one and a half times the lanes
        (8, 48, {}),  # heads that two tiles share
    )
    random = np.random.default_rng(0)
    arrays = [
        [random.normal(size=(1, heads, 128, width)).astype(np.float32) for _ in range(3)]
        for heads, width, _ in cases
    ]

    @jax.jit
    def outputs(attend_to):
        return [
            [
                attend(queries, KeysValues(*keys_values), **usual | change)[0]
                for attend in (attend_on_platform, attend_to_all)
            ]
            for (queries, *keys_values), (_, _, change) in zip(attend_to, cases, strict=True)
        ]

    for (ours, plain), case in zip(outputs(arrays), cases, strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-6, err_msg=f"{case}")


@pytest.mark.parametrize(
    "change, kernels",
    [
        ({}, True),
        ({"attention_dropout": 0.1}, False),
        ({"attention_kernels": False}, False),
        ({"positions": "alibi", "dropout": 0.1}, True),
        ({"num_heads": 1, "d_k": 80}, False),
    ],
    ids=str,
)
def test_a_program_for_a_tpu_has_the_kernels_where_they_apply(change, kernels):
    """With ALiBi only in cross-attention, where the scores have no bias."""
    wide = {"d_model": 128, "num_heads": 2, "max_length": 128, "dropout": 0.0}
    model = Transformer(replace(SMALL, **wide | change))
    ids = jnp.ones((1, 128), jnp.int32)
    same = {"dropout": 0.0, "attention_dropout": 0.0, "attention_kernels": True}
    variables = {"params": parameter_shapes(replace(model.config, **same))}  # traced once for all

    def loss(variables, mutable=False):
        rngs = {"dropout": jax.random.PRNGKey(1)}
        out = model.apply(variables, ids, ids, ids, ids, rngs=rngs, mutable=mutable)
        return (out[0] if mutable else out).sum()

    def texts(f, *platforms):
        traced = jax.jit(f).trace(variables)
        return [traced.lower(lowering_platforms=(name,)).as_text() for name in platforms]

    (tpu,) = texts(loss, "tpu")
    assert ("tpu_custom_call" in tpu) == kernels
    if not change:
        tpu, cpu = texts(jax.grad(loss), "tpu", "cpu")
        assert "tpu_custom_call" in tpu and "tpu_custom_call" not in cpu
        (sown,) = texts(partial(loss, mutable=["intermediates"]), "tpu")
        assert "tpu_custom_call" not in sown
