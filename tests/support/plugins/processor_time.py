"""The pytest plugin that prints the processor time of a session: of all workers and processes."""

import resource

import pytest

from tests.support import forked

WORKERS = pytest.StashKey[list[float]]()  # the seconds of each worker


def seconds() -> float:
    """User and system time of this process and of its child processes that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


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
    terminalreporter.write_line(f"processor time: {total:.0f} s, child processes included")
