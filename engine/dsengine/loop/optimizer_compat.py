"""What the optimizer that ``initialize`` returns has in common with DeepSpeed's.

[Note: direct step]
DeepSpeed's optimizers apply reduced gradients themselves. The torch optimizer that ``initialize``
returns steps shards, which have gradients only inside a step of the engine; its own ``step`` would
do nothing. So ``step`` is replaced on the instance: the engine's calls reach the optimizer's own,
and a script's call updates the weights as ``engine.step()`` does, without counters and schedule.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from weakref import proxy, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dsengine.loop.misuse import MisuseError
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.torch_private.tensors import local_part


class _WithoutExternalParameters(nn.Module):
    """A module without external parameters, as programs that remove hooks expect one."""

    def ds_external_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def _inert_handle() -> RemovableHandle:
    return RemovableHandle(OrderedDict())


class ParameterOffload:
    """The object on which programs such as TRL remove and register DeepSpeed's gather hooks.

    They do so around generation. dsengine gathers with torch's hooks, which work in both modes and
    stay installed; one inert handle represents them.
    """

    def __init__(self) -> None:
        self.module = _WithoutExternalParameters()
        self._register_deepspeed_module(self.module)

    def _register_deepspeed_module(self, module: nn.Module) -> None:
        """Show hooks as registered."""
        del module
        self.forward_hooks: list[Any] = [_inert_handle()]
        self.backward_hooks: list[Any] = [_inert_handle()]

    def remove_hooks(self) -> None:
        """Show hooks as removed."""
        self.forward_hooks, self.backward_hooks = [], []


class LossScaleView:
    """The current loss scale under DeepSpeed's attribute names."""

    def __init__(self, scaler: LossScaler) -> None:
        self._scaler = scaler

    def is_needed(self) -> bool:
        """Whether a script that calls ``loss.backward()`` itself must scale the loss."""
        return self._scaler.dynamic

    @property
    def cur_scale(self) -> float:
        return self._scaler.scale

    loss_scale = cur_scale

    @property
    def cur_iter(self) -> int:
        """Boundaries so far; 0 for a static scale, which does not count them."""
        return getattr(self._scaler, "iteration", 0)

    @property
    def dynamic_loss_scale(self) -> bool:
        return self._scaler.dynamic

    dynamic = dynamic_loss_scale

    @property
    def scale_window(self) -> int | None:
        """Boundaries without overflow until the scale doubles; None for a static scale."""
        return getattr(self._scaler, "window", None)

    @property
    def min_loss_scale(self) -> float | None:
        return getattr(self._scaler, "minimum", None)

    min_scale = min_loss_scale


class MasterViews(Sequence[Tensor]):
    """This rank's fp32 master shards, flat, one for each updated parameter.

    DeepSpeed concatenates those of a group in one tensor.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = proxy(optimizer)

    def __len__(self) -> int:
        return sum(len(group["params"]) for group in self._optimizer.param_groups)

    def __getitem__(self, index: Any) -> Any:
        shards = [shard for group in self._optimizer.param_groups for shard in group["params"]]
        chosen = shards[index]
        return [_flat(shard) for shard in chosen] if isinstance(index, slice) else _flat(chosen)


def _flat(shard: Tensor) -> Tensor:
    return local_part(shard).detach().view(-1)


_MASTERS = {
    0: "fp32_groups_flat",
    1: "single_partition_of_fp32_groups",
    2: "single_partition_of_fp32_groups",
    3: "fp32_partitioned_groups_flat",
}
"""DeepSpeed's attribute for the masters, by stage; stage 0 has masters only in 16-bit training."""


class StepsDirectly(Protocol):
    """The engine of an optimizer."""

    @property
    def is_outside_step(self) -> bool:
        """Whether a call of the optimizer's ``step`` comes from the script."""
        ...

    def step_directly(self) -> None:
        """Update the weights without counters and schedule."""
        ...


class _Step:
    """The ``step`` of an engine's optimizer, without strong references to either."""

    def __init__(self, engine: "StepsDirectly", optimizer: Optimizer, previous: Any) -> None:
        """``previous``: a schedule's replacement of the step; None for the class's own."""
        self.previous = previous
        self._optimizer = ref(optimizer)
        engine_of_optimizer = ref(engine)

        def step(optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
            owner = engine_of_optimizer()
            if owner is not None and owner.is_outside_step:
                if closure is not None or kwargs:
                    raise MisuseError(
                        "optimizer.step() takes no closure or other arguments with an engine: call "
                        "engine.backward(loss), then optimizer.step()"
                    )
                return owner.step_directly()
            if previous is not None:
                return previous(closure, **kwargs)
            of_class: Any = type(optimizer).step
            return of_class(optimizer, closure, **kwargs)

        self.__func__ = step
        """Schedules of torch wrap this, as that of a bound method."""
        if hasattr(previous, "_wrapped_by_lr_sched"):
            self._wrapped_by_lr_sched = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self._optimizer(), *args, **kwargs)


class OptimizerAdapter:
    """Sets on an optimizer the attributes of DeepSpeed's, and its ``step``: nothing else does.

    ``dtype``: the compute dtype. It replaces the adapter of an earlier engine.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scaler: LossScaler,
        engine: StepsDirectly,
        *,
        stage: int,
        dtype: torch.dtype,
    ) -> None:
        self._optimizer = optimizer
        self._scaler = scaler
        previous = vars(optimizer).get("step")
        if isinstance(previous, _Step):
            previous = previous.previous
        low_precision = None if dtype is torch.float32 else dtype
        view = LossScaleView(scaler)
        attributes: dict[str, Any] = {
            "step": _Step(engine, optimizer, previous),
            "zero_stage": stage,
            "low_precision_dtype": low_precision,
            "loss_scaler": view,
            "loss_scale_config": view,
            "dynamic_loss_scale": scaler.dynamic,
            "needs_scaler": view.is_needed,
        }
        # Set once. DeepSpeed's optimizers wrap torch's; a proxy avoids a reference cycle.
        once: dict[str, Callable[[], Any]] = {"optimizer": lambda: proxy(optimizer)}
        if stage > 0 or low_precision is not None:
            once[_MASTERS[stage]] = lambda: MasterViews(optimizer)
        if stage == 3:
            once["parameter_offload"] = ParameterOffload
        attributes |= {name: make() for name, make in once.items() if not hasattr(optimizer, name)}
        self._set(attributes)
        self.publish(overflow=False)

    def publish(self, *, overflow: bool) -> None:
        """Show the result of a step."""
        scale = self._scaler.scale
        self._set({"overflow": overflow, "cur_scale": scale, "loss_scale": scale})

    def _set(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            setattr(self._optimizer, name, value)
