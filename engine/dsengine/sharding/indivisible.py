"""Parameters that cannot be sharded: replicated on every rank at every stage.

These have no dimension (CLIP's ``logit_scale``), which ``fully_shard`` refuses, no element
(DINOv3's register tokens if there are none), whose gradients it cannot reduce, or integers (8-bit
weights of bitsandbytes), of which it cannot make parameters. They remain the
original parameters; their gradients are summed over all ranks in a separate collective. In mixed
precision they have the compute dtype, as in DeepSpeed, and trained ones have an fp32 master.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsengine.optimizers.precision import Policy
from dsengine.parameters.names import own_parameters
from dsengine.parameters.shards import is_indivisible
from dsengine.sharding.to_device import move_parameters
from dsengine.sharding.zero.dtype_view import write
from dsengine.sharding.zero.partitioned import keep_fp32_where_unchanged
from dsengine.torch_private.modules import parameter_table
from dsengine.torch_private.tensors import foreach_copy_


class Indivisible:
    """The replicated ``parameters`` of a model and their ``masters``, usually the same objects.

    Until ``initialize``, ``masters`` are the original parameters.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        """``group``: the ranks whose gradients are averaged."""
        self._group = group
        self.parameters = [p for p in module.parameters() if is_indivisible(p)]
        self.masters = {parameter: parameter for parameter in self.parameters}
        self._with_master: list[tuple[nn.Parameter, nn.Parameter]] = []
        """(parameter in the compute dtype, its trained fp32 master)."""
        self._trained = [p for p in self.parameters if p.requires_grad]
        self._unreduced: dict[nn.Parameter, Tensor] = {}
        """This rank's unreduced fp32 sums, of parameters with a separate master."""
        self._reduced: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        """Of the other parameters, the gradient of the last reduction and its value then."""
        self._compute = torch.float32

    def initialize(self, module: nn.Module, device: torch.device, policy: Policy) -> None:
        """Move the parameters to the device in the training dtypes. Collective."""
        move_parameters(self.parameters, device, policy.storage_dtype, self._group)
        self._compute = policy.compute
        for parameter in self._trained:
            if policy.copies_weights and parameter.dtype is policy.master:
                self.masters[parameter] = nn.Parameter(parameter.detach().clone())
                parameter.data = parameter.data.to(policy.compute)
        self._with_master = [(p, m) for p, m in self.masters.items() if p is not m]
        for owner in module.modules():
            for name, parameter in own_parameters(owner):
                if parameter is not self.masters.get(parameter, parameter):
                    hook = partial(self._after_load, owner, name, parameter)
                    owner.register_load_state_dict_post_hook(hook)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters' values into the parameters."""
        if self._with_master:
            foreach_copy_([p for p, _ in self._with_master], [m for _, m in self._with_master])

    def restore(self) -> None:
        """Move the masters to the device of the parameters, after a move or cast; undo a cast."""
        for parameter, master in self._with_master:
            master.data = master.data.to(parameter.device)
            parameter.data = parameter.data.to(self._compute)
        self.refresh()

    @torch.no_grad()
    def _after_load(self, owner: nn.Module, name: str, parameter: nn.Parameter, *_: object) -> None:
        """Copy what ``load_state_dict`` loaded, maybe as a new object, into the master.

        The other parameters may not be loaded yet; they are unchanged.
        """
        write(self.masters[parameter], parameter_table(owner)[name])
        parameter_table(owner)[name] = parameter
        parameter.copy_(self.masters[parameter])

    def _copy_writes(self) -> None:
        """Copy what a script wrote to the parameters into their masters (CLIP clamps its scale)."""
        if self._with_master:
            values, exact = (
                torch.stack(tensors) for tensors in zip(*self._with_master, strict=True)
            )
            foreach_copy_(
                [m for _, m in self._with_master], [*keep_fp32_where_unchanged(exact, values)]
            )

    @torch.no_grad()
    def accumulate(self) -> None:
        """Add a backward's gradients to this rank's sums, for parameters with a separate master."""
        for parameter, _ in self._with_master:
            if parameter.grad is not None:
                before = self._unreduced.get(parameter, 0.0)
                self._unreduced[parameter] = parameter.grad.float() + before
                parameter.grad = None

    @torch.no_grad()
    def reduce(self, factor: float) -> None:
        """Sum new gradients over ranks, times ``factor``.

        Collective if there are trained parameters.

        The host reads whether other ranks have used a parameter only if this one has not: it would
        wait for the device.
        """
        if not self._trained:
            return
        self.accumulate()
        self._copy_writes()
        new = [self._new_gradient(p).flatten() * factor for p in self._trained]
        used = [p in self._unreduced or p.grad is not None for p in self._trained]
        flags = [new[0].new_full((1,), float(flag)) for flag in used]
        message = torch.cat([*new, *flags])
        dist.all_reduce(message, group=self._group)
        *values, were_used = message.split([*map(len, new), len(new)])
        if not all(used):
            used = [count > 0 for count in were_used.tolist()]
        for parameter, value, was_used in zip(self._trained, values, used, strict=True):
            if was_used:
                self._add(parameter, value.view(parameter.shape))
        self._unreduced.clear()

    def unreduced(self) -> dict[nn.Parameter, Tensor]:
        """Return this rank's unreduced sums by master."""
        own = ((p, self._unreduced.get(p, p.grad)) for p in self.parameters)
        return {self.masters[p]: total for p, total in own if total is not None}

    def drop_unreduced(self) -> None:
        self._unreduced.clear()

    def _add(self, parameter: nn.Parameter, value: Tensor) -> None:
        master = self.masters[parameter]
        if master is not parameter:
            master.grad = value.clone() if master.grad is None else master.grad + value
        else:
            total = self._reduced_gradient(parameter) + value
            parameter.grad = total.to(parameter.dtype)
            self._reduced[parameter] = (parameter.grad, total.clone())

    def _new_gradient(self, parameter: nn.Parameter) -> Tensor:
        if parameter in self._unreduced:
            return self._unreduced[parameter]
        if parameter.grad is None:
            return torch.zeros_like(parameter, dtype=torch.float32)
        return parameter.grad.float() - self._reduced_gradient(parameter)

    def _reduced_gradient(self, parameter: nn.Parameter) -> Tensor:
        """Return the already reduced part of a gradient that is still being accumulated."""
        gradient, value = self._reduced.get(parameter, (None, None))
        if value is None or gradient is not parameter.grad:
            return torch.zeros_like(parameter, dtype=torch.float32)
        return value
