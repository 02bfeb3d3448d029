"""Stage 3: parameters that a forward reads without calling the module that owns them.

[Note: direct use]
``fully_shard`` gathers a unit when one of its modules is called, but models also read weights
directly: ``self.positions.weight[:length]``, ``F.linear(x, self.tokens.weight)``. During the
model's forward, the parameter tables of sharded modules detect this: reading a parameter of a
resharded unit gathers the unit. It then stays gathered until the end of backward (or of forward,
without gradients), because the last use is unknown. If its own modules are called too, PyTorch may
reduce its gradients before the last one arrives; late gradients are reduced again and added.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dsengine.parameters.shards import is_shard
from dsengine.sharding.zero.status import set_gathered_attributes
from dsengine.torch_private.modules import parameter_table, replace_parameter_table
from dsengine.torch_private.units import reduce_late_gradients, sharded_parameters


class DirectUse:
    """Gathers units whose parameters the forward of ``root`` reads directly."""

    def __init__(self, root: nn.Module, units: list[FSDPModule]) -> None:
        self.is_active = False
        """Whether the model's forward is running."""
        self._gathered: list[FSDPModule] = []
        for unit in units:
            for parameter in sharded_parameters(unit):
                for module, _ in parameter.owners:
                    table = parameter_table(module)
                    if not isinstance(table, _ParameterTable):
                        replace_parameter_table(module, _ParameterTable(table, module, unit, self))
        self._root = root
        self._hooks = (
            root.register_forward_pre_hook(self._begin),
            root.register_forward_hook(self._end, always_call=True),
        )

    def remove(self) -> None:
        """Restore the plain parameter tables."""
        for hook in self._hooks:
            hook.remove()
        for module in self._root.modules():
            table = parameter_table(module)
            if isinstance(table, _ParameterTable):
                replace_parameter_table(module, dict(table))

    def gather(self, unit: FSDPModule, module: nn.Module, name: str) -> nn.Parameter:
        """Gather ``unit`` because its parameter ``name`` is read."""
        unit.set_reshard_after_backward(False, recurse=False)
        self._gathered.append(unit)
        unit.unshard()
        return dict.__getitem__(parameter_table(module), name)

    def after_backward(self, reduced: bool) -> None:
        """Reduce late gradients and reshard the units that stayed gathered."""
        for unit in self._gathered:
            if reduced and any(record.has_late_gradient for record in sharded_parameters(unit)):
                reduce_late_gradients(unit)
        self._release()

    def _begin(self, *_: Any) -> None:
        self.is_active = True

    def _end(self, *_: Any) -> None:
        self.is_active = False
        if not torch.is_grad_enabled():
            self._release()

    def _release(self) -> None:
        for unit in self._gathered:
            unit.set_reshard_after_backward(True, recurse=False)
            unit.reshard()
        self._gathered.clear()


class _ParameterTable(dict[str, Any]):
    """The parameter table of one module, which gathers its unit on access."""

    def __init__(
        self, table: dict[str, Any], module: nn.Module, unit: FSDPModule, direct_use: DirectUse
    ) -> None:
        super().__init__(table)
        self.module = module
        self.unit = unit
        self.direct_use = direct_use
        self.shards = dict(table)

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if is_shard(value) and self.direct_use.is_active:
            value = self.direct_use.gather(self.unit, self.module, name)
        if value is not None and not is_shard(value):
            set_gathered_attributes(value, self.shards.get(name, value))
        return value
