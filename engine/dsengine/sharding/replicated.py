"""Stage 0: DistributedDataParallel; every rank holds the full model."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dsconfig import Effective, Plan
from dsengine.optimizers.precision import Policy
from dsengine.sharding.base import Sharding
from dsengine.sharding.reduction import Averaging, all_reduce_hook
from dsengine.sharding.window_sums import WindowSums
from dsengine.tiers.memory import MEBI
from dsengine.torch_private.groups import arm_reducer
from dsengine.torch_private.tensors import foreach_copy_
from dsengine.torch_private.units import inputs_to


class Replicated(Sharding):
    """Parameters in the compute dtype; in mixed precision, fp32 masters of the trained ones.

    [Note: when DistributedDataParallel reduces]
    Its forward decides whether the next backward reduces. A script may declare the end of a window
    only between forward and backward (as accelerate does), and may run forward several times before
    one backward. So forward never arms the reducer; ``before_backward`` does.

    [Note: unused parameters]
    The reducer waits for every gradient. It can search for parameters without one, but then visits
    the graph, sends and reads a map of the used ones and never sorts its buckets, in every
    backward. So unused ones get zeros instead, at the end of a backward that has any. Only a run
    that refuses unused parameters, or has sparse gradients, needs the search.
    """

    has_forward_collectives = False

    def __init__(
        self, module: nn.Module, plan: Plan, policy: Policy, group: dist.ProcessGroup
    ) -> None:
        """``group``: the ranks whose gradients are averaged."""
        super().__init__(module)
        self._group = group
        self._parameters = dict(module.named_parameters())
        self.masters = dict(self._parameters)
        if policy.is_mixed:
            self.masters = {name: _master(p, policy.master) for name, p in self._parameters.items()}
            for parameter in self._parameters.values():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(policy.compute)
        self._pairs = [
            (parameter, self.masters[name])
            for name, parameter in self._parameters.items()
            if self.masters[name] is not parameter
        ]
        self._sums = self._window_sums(plan.effective, policy)
        self._reduced = False
        self._has_unreduced = False
        """Whether gradients of the last backward are to be reduced by a later one."""
        self._trained = [p for p in self._parameters.values() if p.requires_grad]
        self._ready: list[Tensor] = []
        """Parameters whose gradient the current backward has computed."""
        has_sparse = any(getattr(each, "sparse", None) is True for each in module.modules())
        self._searches = has_sparse or not plan.effective.zero.ignore_unused_parameters
        self._wrap_model = partial(self._wrap, plan.effective, policy, has_sparse)
        self._parallel = self._wrap_model()
        self._has_reducer = self._parallel is not None
        counts = self._has_reducer and not self._searches
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._ready.append)
            for parameter in (self._trained if counts else ())
        ]

    def _window_sums(self, effective: Effective, policy: Policy) -> WindowSums | None:
        if policy.accumulation is policy.compute:
            return None
        averaging = Averaging.of(effective, self._group.size())
        return WindowSums(self._parameters.values(), policy.accumulation, averaging, policy.wire)

    def _wrap(
        self, effective: Effective, policy: Policy, has_sparse: bool
    ) -> DistributedDataParallel | None:
        if not self._trained or self._group.size() == 1:
            return None
        first = self._trained[0]
        bucket_bytes = effective.zero.reduce_bucket_size * first.element_size()
        parallel = DistributedDataParallel(
            _WithUnusedParameter(self.module, first) if self._searches else self.module,
            process_group=self._group,
            init_sync=False,
            bucket_cap_mb=min(
                bucket_bytes / MEBI, 25.0
            ),  # at most DistributedDataParallel's default
            find_unused_parameters=self._searches,
            gradient_as_bucket_view=True,
        )
        averaging = Averaging.of(effective, self._group.size())
        custom = not averaging.is_plain_mean or policy.wire is not policy.compute
        # The reducer's own collectives bypass the dispatcher, which counts them.
        if self._sums is not None:
            parallel.register_comm_hook(self._group, self._sums.hook)
        elif custom or has_sparse or effective.reporting.comms_logger is not None:
            parallel.register_comm_hook(self._group, all_reduce_hook(averaging, policy.wire))
        return parallel

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        device = next((p.device for p in self._parameters.values()), torch.device("cpu"))
        if device.type != "cpu":
            args, kwargs = inputs_to(device, args, kwargs)
        return self.module(*args, **kwargs)

    def before_backward(self, loss: Tensor, reduce: bool) -> None:
        self._reduced = self._parallel is not None and reduce
        self._has_unreduced = not reduce
        self._ready.clear()
        if self._parallel is not None and reduce:
            arm_reducer(self._parallel, loss)

    def abort_pass(self, *, in_backward: bool) -> None:
        """Rebuild the reducer after a failed backward.

        An unfinished reducer cannot be armed again, and tracks used parameters over a window.
        """
        if in_backward and self._has_reducer:
            self._parallel = None  # free its buckets before allocating new ones
            self._parallel = self._wrap_model()

    def detach(self) -> None:
        super().detach()
        self._parallel = None  # also removes the reducer's hooks on the parameters
        for hook in self._hooks:
            hook.remove()
        with torch.no_grad():
            for parameter, master in self._pairs:
                parameter.data = master.data

    def after_backward(self) -> None:
        if self._reduced and not self._searches and len(self._ready) < len(self._trained):
            self._reduce_unused()
        self._ready.clear()
        if self._sums is None:
            return
        if self._reduced:
            self._sums.keep_reduced()
        else:
            self._sums.accumulate()

    def _reduce_unused(self) -> None:
        """Complete a reduction with zeros for parameters that the backward has not used.

        Parameters frozen since the reducer was built remain without a gradient.
        """
        ready = {id(parameter) for parameter in self._ready}
        unused = [parameter for parameter in self._trained if id(parameter) not in ready]
        frozen = [parameter for parameter in unused if not parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        torch.autograd.backward(unused, [torch.zeros_like(parameter) for parameter in unused])
        for parameter in frozen:
            parameter.requires_grad_(False)
            parameter.grad = None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        self._move_to_masters()
        for name, gradient in super().gradients():
            if gradient.is_sparse:
                # Values of a coalesced gradient can be scaled in place.
                gradient = self.masters[name].grad = gradient.coalesce()
                yield name, gradient.values()
            else:
                yield name, gradient

    def _move_to_masters(self) -> None:
        """Move gradients from the parameters to their masters, if not done yet."""
        if self._sums is not None and self._sums:
            totals = {name: self._sums.of(p) for name, p in self._parameters.items()}
            self._sums.clear()
            for name, total in totals.items():
                if total is not None:
                    self.masters[name].grad = total.to(self.masters[name].dtype)
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                master.grad = parameter.grad.to(master.dtype)
                parameter.grad = None

    def names_without_gradient(self) -> list[str]:
        self._move_to_masters()
        return super().names_without_gradient()

    def unreduced(self) -> Mapping[str, Tensor] | None:
        if not self._has_unreduced:
            return None
        return {
            name: total
            for name, parameter in self._parameters.items()
            if (total := self._own_sum(parameter)) is not None
        }

    def _own_sum(self, parameter: nn.Parameter) -> Tensor | None:
        return parameter.grad if self._sums is None else self._sums.of(parameter)

    def unreduced_sums(self) -> Iterable[Tensor]:
        return () if self._sums is None else self._sums

    def drop_gradients(self) -> None:
        super().drop_gradients()
        if self._sums is not None:
            self._sums.clear()

    @torch.no_grad()
    def after_update(self, *, frozen: bool = True) -> None:
        del frozen  # a frozen parameter is its own master
        if self._pairs:
            foreach_copy_([p for p, _ in self._pairs], [m for _, m in self._pairs])


class _WithUnusedParameter(nn.Module):
    """The model plus one parameter that forward never uses.

    If DistributedDataParallel searches for unused parameters and finds none, it prints a warning on
    stderr. With this wrapper it always finds one.
    """

    def __init__(self, module: nn.Module, like: Tensor) -> None:
        super().__init__()
        self.module = module
        self.never_used = nn.Parameter(torch.zeros(1, dtype=like.dtype, device=like.device))


def _master(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """Return the copy in ``dtype`` to update, or the parameter itself if it needs none."""
    if not (parameter.requires_grad and parameter.is_floating_point()):
        return parameter
    return nn.Parameter(parameter.detach().to(dtype, copy=True))
