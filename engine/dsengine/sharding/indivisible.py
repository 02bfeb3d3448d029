"""Parameters that nothing can divide: whole on every rank at every stage.

Those without a dimension (CLIP's ``logit_scale``), which ``fully_shard`` refuses, and those without
an element (DINOv3's register tokens when there are none), whose gradients it cannot reduce. They
stay the parameters they were, and their gradients are summed over all ranks in one collective of
their own. In mixed precision they are of the compute dtype like all others, as DeepSpeed casts
them; what is trained has an fp32 master beside it.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsengine.optimizers.precision import Policy
from dsengine.parameters.names import own_parameters
from dsengine.parameters.shards import is_indivisible
from dsengine.sharding.reduction import Averaging
from dsengine.sharding.to_device import move_parameters
from dsengine.sharding.zero.dtype_view import write
from dsengine.sharding.zero.partitioned import keep_fp32_where_unchanged
from dsengine.torch_private import foreach_copy_, parameter_table


class Indivisible:
    """The ``parameters`` of a model that stay whole, and their ``masters``: most often themselves.

    ``masters`` are those from before until ``settle``.
    """

    def __init__(self, module: nn.Module, averaging: Averaging) -> None:
        self.parameters = [each for each in module.parameters() if is_indivisible(each)]
        self.masters = {each: each for each in self.parameters}
        self._apart: list[tuple[nn.Parameter, nn.Parameter]] = []
        """Parameters of the compute dtype, with the masters of fp32 that are trained."""
        self._trained = [each for each in self.parameters if each.requires_grad]
        self._factor = averaging.before * averaging.after
        self._waiting: dict[nn.Parameter, Tensor] = {}
        """Of those with a master apart, this rank's own sums, which are not reduced yet: fp32."""
        self._reduced: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        """Of the others, gradients as the last reduction left them, and their values then."""
        self._compute = torch.float32

    def settle(self, module: nn.Module, device: torch.device, policy: Policy) -> None:
        """Bring them to the device, alike on all ranks, in the dtypes of training. Collective."""
        move_parameters(self.parameters, device, policy.storage_dtype)
        self._compute = policy.compute
        for parameter in self._trained:
            if policy.is_mixed and parameter.dtype is torch.float32:
                self.masters[parameter] = nn.Parameter(parameter.detach().clone())
                parameter.data = parameter.data.to(policy.compute)
        self._apart = [(each, m) for each, m in self.masters.items() if each is not m]
        for owner in module.modules():
            for name, parameter in own_parameters(owner):
                if parameter is not self.masters.get(parameter, parameter):
                    follow = partial(self._follow, owner, name, parameter)
                    owner.register_load_state_dict_post_hook(follow)

    @torch.no_grad()
    def refresh(self) -> None:
        """Give the parameters the values of their masters."""
        if self._apart:
            foreach_copy_([each for each, _ in self._apart], [m for _, m in self._apart])

    def restore(self) -> None:
        """Bring the masters to where the parameters are, which were moved or cast; undo a cast."""
        for parameter, master in self._apart:
            master.data = master.data.to(parameter.device)
            parameter.data = parameter.data.to(self._compute)
        self.refresh()

    @torch.no_grad()
    def _follow(self, owner: nn.Module, name: str, parameter: nn.Parameter, *_: object) -> None:
        """Take into the master what ``load_state_dict`` has given, an object of its own perhaps.

        The others' turn may be to come: they keep what they were given until then.
        """
        write(self.masters[parameter], parameter_table(owner)[name])
        parameter_table(owner)[name] = parameter
        parameter.copy_(self.masters[parameter])

    def _take_writes(self) -> None:
        """Take into the masters what a script has written to the parameters (CLIP clamps its)."""
        if self._apart:
            values, exact = (torch.stack(each) for each in zip(*self._apart, strict=True))
            foreach_copy_([m for _, m in self._apart], [*keep_fp32_where_unchanged(exact, values)])

    @torch.no_grad()
    def take_in(self) -> None:
        """Add what a backward has left to this rank's own sums, where these are apart."""
        for parameter, _ in self._apart:
            if parameter.grad is not None:
                before = self._waiting.get(parameter, 0.0)
                self._waiting[parameter] = parameter.grad.float() + before
                parameter.grad = None

    @torch.no_grad()
    def reduce(self) -> None:
        """Sum over ranks what has come since the last time. Collective where there are any."""
        if not self._trained:
            return
        self.take_in()
        self._take_writes()
        fresh = [self._fresh(each).flatten() * self._factor for each in self._trained]
        used = torch.tensor(
            [float(p in self._waiting or p.grad is not None) for p in self._trained]
        )
        both = torch.cat([*fresh, used.to(fresh[0].device)])
        dist.all_reduce(both)
        *values, were_used = both.split([*map(len, fresh), len(fresh)])
        for parameter, value, was_used in zip(self._trained, values, were_used, strict=True):
            if was_used:
                self._add(parameter, value.view(parameter.shape))
        self._waiting.clear()

    def unreduced(self) -> dict[nn.Parameter, Tensor]:
        """By master, this rank's own sums."""
        own = ((each, self._waiting.get(each, each.grad)) for each in self.parameters)
        return {self.masters[each]: total for each, total in own if total is not None}

    def drop_unreduced(self) -> None:
        self._waiting.clear()

    def _add(self, parameter: nn.Parameter, value: Tensor) -> None:
        master = self.masters[parameter]
        if master is not parameter:
            master.grad = value.clone() if master.grad is None else master.grad + value
        else:
            total = self._before(parameter) + value
            parameter.grad = total.to(parameter.dtype)
            self._reduced[parameter] = (parameter.grad, total.clone())

    def _fresh(self, parameter: nn.Parameter) -> Tensor:
        if parameter in self._waiting:
            return self._waiting[parameter]
        if parameter.grad is None:
            return torch.zeros_like(parameter, dtype=torch.float32)
        return parameter.grad.float() - self._before(parameter)

    def _before(self, parameter: nn.Parameter) -> Tensor:
        """What ranks have in common of a gradient that is still being summed up."""
        gradient, value = self._reduced.get(parameter, (None, None))
        if value is None or gradient is not parameter.grad:
            return torch.zeros_like(parameter, dtype=torch.float32)
        return value
