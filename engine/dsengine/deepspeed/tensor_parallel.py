"""``deepspeed.tp_model_init``."""

from typing import Any

from torch import nn

from dsengine.loop.planning import request_tensor_degree


def tp_model_init(
    model: nn.Module, tp_size: int, dtype: Any = None, config: Any = None, **kwargs: Any
) -> nn.Module:
    """Let the next ``initialize`` split layers over ``tp_size`` ranks; return ``model`` unchanged.

    ``dtype`` and ``config`` are those of ``initialize``. Raises ValueError for a process group of
    another size.
    """
    del dtype, config
    group = kwargs.get("tp_group")
    if group is not None and group.size() != tp_size:
        raise ValueError(f"tp_size is {tp_size}, but tp_group has {group.size()} ranks")
    request_tensor_degree(tp_size)
    return model
