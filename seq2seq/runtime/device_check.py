"""A check of known results on each GPU or TPU, before anything else is computed there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.runtime.errors import INTERNAL, UserError

INTEGERS = np.arange(64, dtype=np.float32).reshape(8, 8)  # exact in bfloat16 and TF32 too
SQUARES = np.array([0.25, 2, 512], np.float32)
# name → expected result. The random bits are Random123's known answer for key 0 and counter 0, of
# which jax combines both words.
EXPECTED: dict[str, np.ndarray] = {
    "a product": INTEGERS @ INTEGERS,
    "a sum": np.array(2016, np.float32),
    "a square root": np.sqrt(SQUARES),
    "random bits": np.array([0x6B200159 ^ 0x99BA4EFE], np.uint32),
}


def check_accelerators() -> None:
    """UserError(INTERNAL) if an accelerator of this process computes a known result wrongly, as
    with some pairs of a driver and a version of jax (github.com/jax-ml/jax/issues/40633).

    It takes milliseconds, after a small compilation for each device. CPUs are not checked.
    """
    for device in jax.local_devices():
        if device.platform != "cpu":
            check_device(device)


def check_device(device: jax.Device) -> None:
    """`check_accelerators` of one device."""
    computed = jax.device_get(known_results(*jax.device_put((INTEGERS, SQUARES), device)))
    for name, expected in EXPECTED.items():
        if not np.allclose(computed[name], expected, rtol=1e-3, atol=0):
            driver = " ".join(str(device.client.platform_version).split())
            raise UserError(
                INTERNAL,
                f"{device.device_kind} computes {name} wrongly with jax {jax.__version__} "
                f"({driver}): expected {np.ravel(expected)[-1]}, got "
                f"{np.ravel(computed[name])[-1]}; install another version of jax or of the driver",
            )


@jax.jit
def known_results(integers: jax.Array, squares: jax.Array) -> dict[str, Any]:
    """The results of EXPECTED. Of arguments, so that the compiler does not compute them."""
    return {
        "a product": integers @ integers,  # [8, 8]
        "a sum": jnp.sum(integers),
        "a square root": jnp.sqrt(squares),  # [3]
        "random bits": jax.random.bits(jax.random.key(0, impl="threefry2x32"), (1,)),
    }
