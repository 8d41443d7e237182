"""A full disk without a disk: a limit on the size of files."""

import resource
from contextlib import contextmanager


@contextmanager
def largest_file(size):
    """Writes beyond this size of a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
