"""The type checker of annotated functions in tests."""

from beartype import beartype


def checked(function):
    """`function` with checks of its annotations, unless another function defines it: beartype
    generates code at each definition, which would take a third of the time of tracing a model."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
