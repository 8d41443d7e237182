"""JAX's own settings that results depend on or that programs of this project do not work with.

Environment variables such as JAX_ENABLE_X64 and programs that use this package change them.
"""

from typing import Any

from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.streams import note

FIXED = {
    # random numbers: initialisation, dropout and samples
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_enable_custom_prng": False,  # checkpoints hold the words of keys
    "jax_legacy_prng_key": "allow",
    # types and values
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    # checks that correct programs fail: masked scores are infinite, and arrays are transferred
    "jax_debug_infs": False,
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_array_garbage_collection_guard": None,
    "jax_no_tracing": False,
    "jax_no_execution": False,
    "jax_transfer_guard": None,
    "jax_transfer_guard_host_to_device": None,
    "jax_transfer_guard_device_to_device": None,
    "jax_transfer_guard_device_to_host": None,
}


def fix_settings() -> None:
    """Give these settings their values, with a warning that names those that had others."""
    import jax

    if changed := changed_settings():
        for name in changed:
            jax.config.update(name, FIXED[name])
        note(
            f"warning: {described(changed)} is not supported: expected the default, on which "
            "results depend, and it is used instead; unset it"
        )


def check_settings() -> None:
    """UserError(CONFIGURATION) if a setting has another value, in a program that may need it."""
    if changed := changed_settings():
        raise UserError(
            CONFIGURATION,
            f"{described(changed)} is not supported: expected the default, on which results "
            "depend; unset it, or set it with jax.config.update before",
        )


def described(settings: dict[str, Any]) -> str:
    """The settings as environment variables, without those that another one has set."""
    return ", ".join(
        f"{name.upper()}={value}"
        for name, value in settings.items()
        if not any(name.startswith(f"{other}_") for other in settings)
    )


def changed_settings() -> dict[str, Any]:
    """The settings whose values are not those of FIXED."""
    import jax

    values = {name: getattr(jax.config, name, value) for name, value in FIXED.items()}
    plain = {name: getattr(value, "value", value) for name, value in values.items()}  # enums
    return {name: value for name, value in plain.items() if value != FIXED[name]}
