"""Stage 0: DistributedDataParallel; every rank holds the full model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dsconfig import Effective
from dsengine.optimizers.precision import Policy
from dsengine.sharding.base import Gradients, Sharding
from dsengine.sharding.reduction import Averaging, all_reduce_hook
from dsengine.sharding.window_sums import WindowSums
from dsengine.tiers import OffloadedGradients
from dsengine.tiers.memory import MEBI
from dsengine.torch_private.groups import arm_reducer
from dsengine.torch_private.tensors import foreach_copy_
from dsengine.torch_private.units import inputs_to


class Replicated(Sharding):
    """Parameters in the compute dtype; in mixed precision, fp32 masters of the trained ones."""

    has_forward_collectives = False

    def __init__(self, module: nn.Module, policy: Policy) -> None:
        super().__init__(module)
        self.parameters = dict(module.named_parameters())
        self.masters = dict(self.parameters)
        if policy.is_mixed:
            self.masters = {name: _master(p, policy.master) for name, p in self.parameters.items()}
            for parameter in self.parameters.values():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(policy.compute)
        self.pairs = [
            (parameter, self.masters[name])
            for name, parameter in self.parameters.items()
            if self.masters[name] is not parameter
        ]
        """Parameters with another master."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        device = next((p.device for p in self.parameters.values()), torch.device("cpu"))
        if device.type != "cpu":
            args, kwargs = inputs_to(device, args, kwargs)
        return self.module(*args, **kwargs)

    def detach(self) -> None:
        super().detach()
        with torch.no_grad():
            for parameter, master in self.pairs:
                parameter.data = master.data

    @torch.no_grad()
    def after_update(self, *, frozen: bool = True) -> None:
        del frozen  # a frozen parameter is its own master
        if self.pairs:
            foreach_copy_([p for p, _ in self.pairs], [m for _, m in self.pairs])


class ReplicatedGradients(Gradients):
    """Gradients that DistributedDataParallel averages.

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

    def __init__(
        self,
        sharding: Replicated,
        offloaded: OffloadedGradients | None,
        effective: Effective,
        policy: Policy,
        group: dist.ProcessGroup,
    ) -> None:
        """``group``: the ranks whose gradients are averaged."""
        super().__init__(sharding, offloaded)
        self._module = module = sharding.module
        self._parameters, self._pairs = sharding.parameters, sharding.pairs
        self._group = group
        self._sums = self._window_sums(effective, policy)
        self._reduced = False
        self._has_unreduced = False
        """Whether gradients of the last backward are to be reduced by a later one."""
        self._trained = [p for p in self._parameters.values() if p.requires_grad]
        self._ready: list[Tensor] = []
        """Parameters whose gradient the current backward has computed."""
        has_sparse = any(getattr(each, "sparse", None) is True for each in module.modules())
        self._searches = has_sparse or not effective.zero.ignore_unused_parameters
        self._wrap_model = partial(self._wrap, effective, policy, has_sparse)
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
        parameters = list(self._parameters.values())
        return WindowSums(parameters, policy.accumulation, averaging, policy.wire)

    def _wrap(
        self, effective: Effective, policy: Policy, has_sparse: bool
    ) -> DistributedDataParallel | None:
        if not self._trained or self._group.size() == 1:
            return None
        first = self._trained[0]
        bucket_bytes = effective.zero.reduce_bucket_size * first.element_size()
        parallel = DistributedDataParallel(
            _WithUnusedParameter(self._module, first) if self._searches else self._module,
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

    def before_backward(self, roots: Sequence[Tensor], reduce: bool) -> None:
        self._reduced = self._parallel is not None and reduce
        self._has_unreduced = not reduce
        self._ready.clear()
        if self._parallel is not None and reduce:
            arm_reducer(self._parallel, roots)

    def abort_pass(self, *, in_backward: bool) -> None:
        """Rebuild the reducer after a failed backward.

        An unfinished reducer cannot be armed again, and tracks used parameters over a window.
        """
        if in_backward and self._has_reducer:
            self._parallel = None  # free its buckets before allocating new ones
            self._parallel = self._wrap_model()

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

    def reduced(self) -> Iterator[tuple[str, Tensor]]:
        self._move_to_masters()
        for name, gradient in super().reduced():
            if gradient.is_sparse:
                # Values of a coalesced gradient can be scaled in place.
                gradient = self._masters[name].grad = gradient.coalesce()
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
                    self._masters[name].grad = total.to(self._masters[name].dtype)
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                master.grad = parameter.grad.to(master.dtype)
                parameter.grad = None

    def missing(self) -> list[str]:
        self._move_to_masters()
        return super().missing()

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

    def drop(self) -> None:
        super().drop()
        if self._sums is not None:
            self._sums.clear()

    def release(self) -> None:
        super().release()
        self._parallel = None  # also removes the reducer's hooks on the parameters
        for hook in self._hooks:
            hook.remove()


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
