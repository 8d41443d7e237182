"""Settings of JAX that change results are fixed in commands and refused in Python programs."""

import jax
import numpy as np
import pytest

from seq2seq import Translator
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.jax_settings import FIXED, changed_settings, fix_settings

OTHERS = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 3,
    "jax_high_dynamic_range_gumbel": True,
    "jax_enable_custom_prng": True,
    "jax_legacy_prng_key": "error",
    "jax_enable_x64": True,
    "jax_default_matmul_precision": "bfloat16",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_debug_infs": True,
    "jax_error_checking_behavior_nan": "raise",
    "jax_error_checking_behavior_divide": "raise",
    "jax_error_checking_behavior_oob": "raise",
    "jax_array_garbage_collection_guard": "log",
    "jax_no_tracing": True,
    "jax_no_execution": True,
    "jax_transfer_guard": "disallow",
    "jax_transfer_guard_host_to_device": "disallow",
    "jax_transfer_guard_device_to_device": "disallow",
    "jax_transfer_guard_device_to_host": "disallow",
}


@pytest.fixture(autouse=True)
def restored():
    before = {name: getattr(jax.config, name) for name in FIXED}
    yield
    for name, value in before.items():
        jax.config.update(name, getattr(value, "value", value))


@pytest.mark.parametrize("name", FIXED)
def test_a_command_uses_the_default_and_a_python_program_is_refused(name, capsys):
    fix_settings()
    assert capsys.readouterr().err == ""
    jax.config.update(name, OTHERS[name])
    message = f"{name.upper()}={OTHERS[name]} is not supported"
    with pytest.raises(UserError, match=message) as refused:
        Translator.load("nowhere")
    assert refused.value.code == CONFIGURATION
    fix_settings()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {message}") and not changed_settings()


def test_random_numbers_are_the_same_after_all_settings_were_changed():
    def random():
        key = jax.random.PRNGKey(1)
        return np.asarray(jax.random.uniform(key, (3,))), jax.random.categorical(key, np.ones(99))

    fix_settings()
    expected = random()
    for name in ("jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset"):
        jax.config.update(name, OTHERS[name])
        assert not np.array_equal(random()[0], expected[0])
        fix_settings()
    for name in FIXED:
        jax.config.update(name, OTHERS[name])
    fix_settings()
    numbers, sample = random()
    np.testing.assert_array_equal(numbers, expected[0])
    assert numbers.dtype == np.float32 and sample == expected[1]
