"""External parameters: used by one module and owned by another."""

from torch import nn

_EXTERNAL = "_dsengine_external"


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Declare that ``module`` uses ``parameter`` of another module in its forward.

    The unit that owns it then stays unsharded, so that it can be used anywhere. Call this before
    ``initialize``, for example in the model's constructor. Raises TypeError for other arguments.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"register_external_parameter expects a module, not {type(module).__name__}"
        )
    if not isinstance(parameter, nn.Parameter):
        raise TypeError(
            f"register_external_parameter expects a Parameter, not {type(parameter).__name__}"
        )
    setattr(parameter, _EXTERNAL, True)


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Undo ``register_external_parameter``."""
    setattr(parameter, _EXTERNAL, False)


def inherit(parameter: nn.Parameter, origin: nn.Parameter) -> None:
    """Mark ``parameter`` as external if the one it replaces is."""
    setattr(parameter, _EXTERNAL, getattr(origin, _EXTERNAL, False))


def uses_elsewhere(parameter: nn.Parameter) -> bool:
    """Whether modules that do not own ``parameter`` use it."""
    return getattr(parameter, _EXTERNAL, False)


def uses_external(*modules: nn.Module) -> bool:
    """Whether a parameter of ``modules`` is used elsewhere, so that they must stay unsharded."""
    return any(uses_elsewhere(parameter) for module in modules for parameter in module.parameters())
