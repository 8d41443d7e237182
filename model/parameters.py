"""Parameters of modules, read without a trace of their initialisers."""

from collections.abc import Callable

from flax import linen as nn
from flax.errors import ScopeParamShapeError
from jax import Array


def parameter(
    module: nn.Module,
    name: str,
    init: Callable[[Array, tuple[int, ...]], Array],
    shape: tuple[int, ...],
) -> Array:
    """`module.param(name, init, shape)`, faster to trace: in `apply`, `param` also traces `init`
    for its shape, which here is `shape`.

    Raises the errors of `param`: ScopeParamShapeError for a value of another shape,
    ScopeParamNotFoundError and ScopeCollectionNotFound for a missing one.
    """
    if not module.has_variable("params", name):
        return module.param(name, init, shape)
    value: Array = module.get_variable("params", name)
    if value.shape != shape:
        raise ScopeParamShapeError(name, f"/{'/'.join(module.path)}", value.shape, shape)
    return value
