"""Bit identity with XLA optimisations, as for users; test_optimised.py runs this file.

The tests of other files are repeated in a process with the optimisations enabled.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.decoding.translator import Translator
from seq2seq.runtime.signals import Stopped
from tests.decoding.command import test_batch_decoding
from tests.model import test_stepping
from tests.model.search import test_sampling, test_translate
from tests.support.runs import run_training, state_bytes
from tests.support.tiny import mixed_lines, tiny_config, write_corpus, write_run

pytestmark = pytest.mark.usefixtures("short_cache_blocks")

FLAG = "jax_disable_most_optimizations"


def test_the_option_takes_effect_in_this_process():
    """Optimised code rounds a layer norm differently."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 300)), jnp.float32)

    def normed():
        jax.clear_caches()
        y = jax.jit(lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1)[:, None]))(x)
        return np.asarray(y)

    fast = normed()
    jax.config.update(FLAG, True)
    plain = normed()
    jax.config.update(FLAG, False)
    np.testing.assert_allclose(plain, fast, atol=1e-5)
    assert plain.tobytes() != fast.tobytes()


@pytest.mark.parametrize(
    "check",
    [
        test_translate.test_results_do_not_depend_on_neighbours_in_any_bit,
        test_translate.test_results_do_not_depend_on_the_place_in_the_batch_in_any_bit,
        test_translate.test_sentences_that_share_lanes_have_the_same_results_in_any_place_of_the_queue,
        test_translate.test_results_do_not_depend_on_ids_beyond_the_length_of_a_source_in_any_bit,
        test_sampling.test_samples_do_not_depend_on_neighbours,
    ],
    ids=lambda check: check.__name__,
)
def test_a_line_is_independent_of_the_others(check):
    check()


def test_stepping_with_the_cache_equals_teacher_forcing(monkeypatch):
    check = test_stepping.test_stepping_with_the_cache_equals_teacher_forcing
    check("post", "rotary", "float32", monkeypatch)


def test_translations_do_not_depend_on_devices_batches_and_parts_of_the_input(tmp_path):
    """Compares one device of another process with four of this one: whole, shuffled, in parts."""
    write_run(tmp_path / "run")
    lines = mixed_lines(90, seed=2)
    expected, _ = test_batch_decoding.decode(tmp_path, stdin="\n".join(lines).encode())
    translator = Translator.load(tmp_path / "run")
    assert jax.local_device_count() == 4
    assert translator.translate(lines) == expected
    order = np.random.default_rng(3).permutation(len(lines))
    assert translator.translate([lines[i] for i in order]) == [expected[i] for i in order]
    assert translator.translate(lines[:31]) + translator.translate(lines[31:]) == expected


def test_resumed_training_gives_the_bits_of_uninterrupted_training(tmp_path):
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 118))
    run_training(tmp_path / "whole", config)
    with pytest.raises(Stopped):
        run_training(tmp_path / "run", tiny_config(config.data.corpus), stop_after=5)
    run_training(tmp_path / "run", tiny_config(config.data.corpus))
    assert state_bytes(tmp_path / "run") == state_bytes(tmp_path / "whole")
