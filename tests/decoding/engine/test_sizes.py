"""Sizes of batches, windows and chunks by platform, memory and number of devices."""

import itertools
from dataclasses import replace

import jax
import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.buckets import length_buckets
from seq2seq.decoding.engine.requests import max_lengths
from seq2seq.decoding.engine.search_memory import lane_bytes
from seq2seq.decoding.engine.sizes import Machine, sizes_of
from seq2seq.model.cache import empty_keys_values
from seq2seq.model.config import ModelConfig, num_parameters
from seq2seq.model.platforms import CPU, GPU, TPU

MODEL = ModelConfig(source_vocab_size=37_000, target_vocab_size=37_000, max_length=512)
GB = 10**9


def sizes(platform="gpu", memory=None, devices=1, cores=1, models=(MODEL,), **options):
    machine = Machine(platform, memory, devices, cores)
    return sizes_of(models, DecodingConfig(**options), machine)


def cache_bytes(batch_size, bucket, beam_size, model=MODEL):
    """The bytes of the caches and of the encoded sentences in a search, from the real arrays."""
    lanes = sizes(batch_size=batch_size).lanes(bucket)
    target = int(max_lengths(DecodingConfig(), jax.numpy.array(bucket), model.max_length))
    trees = [
        jax.eval_shape(lambda shape=shape: empty_keys_values(model, *shape))
        for shape in ((lanes, target * beam_size), (lanes, bucket))
    ]
    caches = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(trees))
    return caches + 4 * 2 * lanes * bucket * model.d_model


@pytest.mark.parametrize("beam_size", [1, 4, 100])
@pytest.mark.parametrize("memory", [None, 10**6])
def test_on_a_cpu_a_device_searches_32_sentences(beam_size, memory):
    chosen = sizes("cpu", memory, devices=2, beam_size=beam_size)
    assert chosen.batch_size == 32 and chosen.window == 2 * 32 * CPU.window
    assert chosen == sizes("cpu", memory, devices=2, beam_size=beam_size, batch_size=32)


def test_the_parameters_of_each_model_of_an_ensemble_need_memory():
    memory = 10 * num_parameters(MODEL)
    assert sizes(memory=memory).batch_size > 1
    assert sizes(memory=memory, models=(MODEL,) * 3).batch_size == 1


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_given_batch_size_is_used_on_any_platform(platform):
    for batch_size in (1, 3, 64, 10**6):
        assert sizes(platform, memory=GB, batch_size=batch_size).batch_size == batch_size


@pytest.mark.parametrize("platform, choices", [("gpu", GPU), ("tpu", TPU)])
def test_an_accelerator_of_large_memory_extends_thousands_of_hypotheses(platform, choices):
    """A power of two: devices of slightly different memory have the same programs."""
    for slots in (1, 2, 3, 4, 5, 12, 10_000):
        for options in (dict(beam_size=slots), dict(samples=slots)):
            rows = sizes(platform, memory=10**15, **options).batch_size
            assert rows & (rows - 1) == 0
            assert rows * slots <= choices.hypotheses < 2 * rows * slots or rows == 1
            assert rows == sizes(platform, memory=None, **options).batch_size


def test_devices_that_share_a_model_have_its_weights_in_the_dtype_of_their_products():
    for dtype, bytes_each in ("float32", (4, 2, 1)), ("mixed", (4, 1, 0.5)):
        model = replace(MODEL, dtype=dtype, num_layers=48)
        for together, width in zip((1, 2, 4), bytes_each, strict=True):
            rows = [
                sizes(
                    memory=int(share * width * num_parameters(model)), devices=4, models=(model,),
                    model_parallel=together, max_extra_length=1,
                ).batch_size
                for share in (1, 2)
            ]  # fmt: skip
            assert rows[0] == 1 < rows[1]


@pytest.mark.parametrize("memory, beam_size", itertools.product((8, 16, 80), (1, 4, 12)))
def test_the_caches_of_all_buckets_fit_into_half_of_the_memory(memory, beam_size):
    chosen = sizes(memory=memory * GB, beam_size=beam_size)
    used = [
        cache_bytes(chosen.batch_size, bucket, beam_size)
        for bucket in length_buckets(MODEL.max_length)
    ]
    assert memory * GB / 16 < max(used) < memory * GB / 2 or chosen.batch_size * beam_size == 4096


def test_more_memory_never_gives_a_smaller_batch_and_more_work_never_a_larger_one():
    memories = [0, 10**6, GB, 4 * GB, 16 * GB, 80 * GB, 10**15]
    batch_sizes = [sizes(memory=memory).batch_size for memory in memories]
    assert batch_sizes == sorted(batch_sizes) and batch_sizes[0] == 1 < batch_sizes[-1]
    usual = sizes(memory=16 * GB).batch_size
    assert sizes(memory=16 * GB, models=(MODEL,) * 4).batch_size <= usual / 4
    assert sizes(memory=16 * GB, max_extra_length=400).batch_size < usual
    large = ModelConfig(source_vocab_size=10**6, target_vocab_size=10**6, max_length=512)
    assert sizes(memory=16 * GB, models=(large,)).batch_size < usual


@pytest.mark.parametrize("source, extra, beams", [(512, 0, 1), (16, 496, 8)])
def test_attention_weights_need_memory(source, extra, beams):
    """With 64 heads instead of 1, the caches are equal. The encoder has weights of all pairs of
    source tokens; a step those of each hypothesis to the steps of all of its sentence."""
    model = ModelConfig(source_vocab_size=9, target_vocab_size=9, d_model=64, max_length=512)
    options = DecodingConfig(beam_size=beams, max_extra_length=extra)
    few, many = (
        lane_bytes(replace(model, num_heads=heads), options, source, 512) for heads in (1, 64)
    )
    weights = source**2 if beams == 1 else beams * 512 * beams
    assert many - few >= 4 * 63 * weights


@pytest.mark.parametrize("kind", ["rnn", "rnn_attention"])
def test_the_batch_of_an_rnn_does_not_depend_on_the_length_of_the_target(kind):
    """Its state has one vector for each layer, where a Transformer has keys of every step."""
    rnn = ModelConfig(kind=kind, source_vocab_size=1000, target_vocab_size=1000, max_length=512)
    batch_sizes = [
        sizes(memory=GB, models=(model,), max_extra_length=extra).batch_size
        for model in (rnn, replace(rnn, kind="transformer"))
        for extra in (50, 400)
    ]
    assert batch_sizes[0] == batch_sizes[1] > batch_sizes[2] > batch_sizes[3]


def test_windows_and_chunks_follow_the_number_of_devices_lanes_and_calls():
    """A process takes at least a batch for each of its devices and calls in turn."""
    for platform, choices in (("cpu", CPU), ("gpu", GPU)):
        for devices, batch_size in ((1, 32), (8, 32), (8, 1024), (64, 4096)):
            chosen = sizes(platform, devices=devices, cores=4, batch_size=batch_size)
            lines = batch_size * (4 if (platform, devices) == ("cpu", 1) else devices)
            assert chosen.window == choices.window * lines
            assert chosen.chunk == max(4096, lines)


def test_on_a_cpu_each_core_without_a_device_of_its_own_runs_a_call():
    calls = [sizes("cpu", devices=d, cores=6).calls for d in (1, 2, 3, 4, 6, 8)]
    assert calls == [6, 3, 2, 1, 1, 1]
    # The devices of a copy wait for each other, so two programs at once could wait forever.
    shared = sizes("cpu", devices=4, cores=6, model_parallel=2)
    assert (shared.copies, shared.calls, shared.batch(32)) == (2, 1, 64)
    for devices in (1, 4):
        assert sizes("gpu", devices=devices, cores=6).calls == 1
        assert sizes("tpu", devices=devices, cores=6).calls == 1
