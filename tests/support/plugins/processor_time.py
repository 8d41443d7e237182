"""The pytest plugin that prints the processor time of a session: of all workers and processes."""

import os
import resource
import time

import jax
import jax.numpy as jnp
import pytest

from tests.support import forked

WORKERS = pytest.StashKey[list[float]]()  # the seconds of each worker


def seconds() -> float:
    """User and system time of this process and of its child processes that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def calibration() -> float:
    """The processor time in which this machine compiles one fixed program: figures of two machines
    compare by it. The program is plain JAX, so that no change of the project changes it."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)  # never cached
    weights = [jnp.zeros((16, 16))] * 24
    jax.jit(jnp.sum).lower(weights[0]).compile()  # starts the compiler
    started = time.process_time()
    jax.jit(jax.grad(fixed_program)).lower(weights).compile()
    return time.process_time() - started


def fixed_program(weights: list[jax.Array]) -> jax.Array:
    """A loss of layers as in a network: products, a softmax and a loop."""
    x = jnp.ones((8, 16))
    for query, key, value in zip(*[iter(weights)] * 3, strict=True):
        attention = jax.nn.softmax((x @ query) @ (x @ key).T)
        x = x + jnp.tanh(attention @ x @ value)
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    _, losses = jax.lax.scan(lambda c, row: (c + row, jax.nn.logsumexp(c * row)), x[0], x)
    return losses.sum()


def pytest_configure(config):
    config.stash[WORKERS] = []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """End the servers, whose time is known then; a worker sends its time to the main process."""
    forked.end_servers()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_seconds"] = seconds()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node):
    output = getattr(node, "workeroutput", None) or {}  # none if the worker crashed
    node.config.stash[WORKERS].append(output.get("processor_seconds", 0.0))


def pytest_terminal_summary(terminalreporter, config):
    workers = config.stash[WORKERS]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    total = sum(workers, usage.ru_utime + usage.ru_stime) if workers else seconds()
    line = f"processor time: {total:.0f} s, child processes included"
    optimised = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "0"  # as in conftest.py
    if not optimised and not config.option.collectonly:
        line += f"; calibration: {calibration():.2f} s to compile a fixed program"
    terminalreporter.write_line(line)
