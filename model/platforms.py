"""Platforms: one table of the choices that depend on the device, with the reason for each value.

Those of the CPU are measured where the comment says so. Those of GPU and TPU are derived or judged
by their compilers (docs/SCALING.md, benchmarks/compiled_programs.md). The layout of a cache
(model/cache.py) is the same on all platforms, because the programs of several platforms can share
one file (scripts/export.py). A CPU reads it as it is stored; on GPU and TPU, XLA chooses the order
of the axes in memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax


class Choices(NamedTuple):
    """What suits the devices of a platform."""

    sentences: int  # the most that a device searches at once, if they have up to 32 source tokens
    hypotheses: int  # the most that a device extends in a step, if its memory suffices; 0: no limit
    encoder_tokens: int  # the most source tokens that are encoded together
    window: int  # batches of lines that are sorted by length together; bounds memory of the host
    compilations: int  # programs that are compiled at once, while others run
    two_stages: bool  # top-k of a vocabulary in two stages (model/search/candidates.py)
    queue: int = 16  # batches in one call of a device
    call_per_core: bool = False  # each core of the host runs a call, not the devices together
    chunk: int = 4096  # the fewest lines that a process of a job takes in turn
    lanes_in_turn: bool = False  # values between passes over logits exist for one lane at a time
    bias_in_table: bool = False  # the bias of the logits is part of their table in inference
    attention_kernels: str = ""  # tpu or triton: attention by model/platform_attention.py
    cache_by_scatter: bool = True  # otherwise a step writes whole blocks of the cache
    cache_blocks: int = 4  # of each layer; a branch reads those in use
    joined_norm: bool = False  # of gradients: sums of all arrays are joined before they are added
    update_in_branch: bool = False  # otherwise old and new state are computed, and one is selected


# Equal on all platforms, or on GPU and TPU:
# queue: derived. Lanes idle at the end of a call only, for about one sentence of 16.
# chunk: derived. Results are saved after as many lines, so a fast device writes few files a second.
#   A chunk is never smaller than a batch (seq2seq/decoding/engine/sizes.py).
# update_in_branch: compiled for an h100: a branch waits for its condition on the host, and its
#   results are copied, a kernel for each array of the state.
# bias_in_table: derived for GPU and TPU. Products are fastest if D is a multiple of 8 (GPU) or 128
#   (TPU), and two more columns prevent that.
# Figures of the CPU: benchmarks/decode_speed.md.
CPU = Choices(
    sentences=32,  # measured: 16 to 48 are not faster; 64 are with D = 768, not with D = 256
    call_per_core=True,  # measured: as fast as a device for each core, with one copy of the weights
    hypotheses=0,  # the number of sentences decides, whatever the beam size
    encoder_tokens=512,  # measured: 1,024 exceed a core's cache and take twice as long per token
    window=64,  # derived: four full calls, one for each of the usual length buckets
    two_stages=True,  # measured: lax.top_k of a whole vocabulary takes longer
    cache_blocks=4,  # measured: one block takes 6 % longer with limits of S + 12, 10 % with S + 50
    lanes_in_turn=True,  # measured: otherwise they exceed a core's cache, and take 25 to 41 MB
    update_in_branch=True,  # measured: as fast, with less memory: 2.7 instead of 3.0 GB for base
    bias_in_table=True,  # measured: a sum after the product takes another pass over the logits
    compilations=1,  # measured on two cores: 2 double the time to the first results, equal in total
)
# A step reads all weights once, whatever the number of hypotheses, and starts some hundred kernels
# of a few µs each. From about 300 hypotheses on, the products take longer than reading the weights
# in bfloat16 (1,000 TFLOP/s, 3.4 TB/s). At 4,096, reading the caches of the base model (some GB)
# takes longer than starting the kernels, so more hypotheses bring little.
GPU = Choices(
    sentences=4096,  # beam size 1
    hypotheses=4096,
    encoder_tokens=32_768,  # far above what fills the device; more would only take memory
    window=32,  # a line takes about 1 kB of the host: 0.3 GB for 8 devices with beam size 4
    compilations=8,  # the cores of the host are free; each takes some hundred MB
    cache_blocks=1,  # compiled for an h100: a third fewer kernels, and no branch waits for the host
    two_stages=True,  # derived: a maximum is one pass over the logits; lax.top_k may sort instead
    # Compiled for an h100, "triton" takes 49 instead of 74 GB for a training step of base. It is
    # off until a device has shown that it is right and faster (benchmarks/compiled_programs.md).
    attention_kernels="",
    joined_norm=True,  # compiled for an h100: 118 fewer kernels in a training step of base
)
# As GPU: 200 TFLOP/s and 0.8 TB/s (v5e) give the same ratio of products to reading weights. A
# device has less memory, which limits the hypotheses (seq2seq/decoding/engine/sizes.py).
TPU = GPU._replace(
    two_stages=False,  # compiled for a v5e: the second stage is a loop over all chosen chunks
    attention_kernels="tpu",  # compiled for a v5e: benchmarks/compiled_programs.md
    cache_blocks=4,  # compiled for a v5e: the device decides which branch it takes
    joined_norm=False,
    cache_by_scatter=False,  # compiled for a v5e: a scatter needs another layout, copied each step
)


def choices_of(platform: str) -> Choices:
    """The choices of a platform by JAX's name of it: cpu, tpu, gpu, cuda, rocm, …"""
    return {"cpu": CPU, "tpu": TPU}.get(platform, GPU)


def by_platform(choose: Callable[[Choices], Any], run: Callable[[Any], Any]) -> Any:
    """run(choose(choices)) with the choices of the platform for which the program is lowered.

    The platform is known at lowering, possibly for several platforms (scripts/export.py). Equal
    values give one program without branches.
    """
    cpu, tpu, default = map(choose, (CPU, TPU, GPU))
    branches = {
        name: partial(run, value)
        for name, value in (("cpu", cpu), ("tpu", tpu))
        if value != default
    }
    if not branches:
        return run(default)
    return jax.lax.platform_dependent(default=partial(run, default), **branches)
