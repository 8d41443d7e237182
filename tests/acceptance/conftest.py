"""Fixtures of the acceptance tests: a corpus and an uninterrupted run."""

import pytest

from tests.acceptance.processes import Bench
from tests.support.tiny import write_corpus


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    """A corpus of slightly more than four batches: twelve steps are three epochs."""
    path = tmp_path_factory.mktemp("bench")
    return Bench(path, write_corpus(path / "pairs.tsv", 132))


@pytest.fixture(scope="session")
def whole(bench):
    """An uninterrupted run of twelve steps."""
    code, lines = bench.train_here(bench.path / "whole")
    assert code == 0, lines
    return bench.path / "whole"
