"""``engine.offload_states`` and ``reload_states``."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsengine.checkpoints.export.iteration import OpenIteration
from dsengine.optimizers import Binding
from dsengine.sharding import Gradients, Sharding
from dsengine.sharding.zero.dtype_view import shard_of
from dsengine.tiers.offloaded_states import OffloadedStates
from dsengine.tiers.offloaded_states import OffloadStateTypeEnum as State
from dsengine.torch_private.units import sharded_parameters_of, units_of

MODEL = frozenset({State.lp_params})
GRADIENTS = frozenset({State.lp_params, State.lp_grads})
EVERYTHING = frozenset(set(State) - {State.contiguous_grad_buffer})
"""States that a phase needs on the device; reduction buffers are allocated when needed."""


@dataclass(eq=False)
class Offloading:
    """Offloads an engine's states to the host and reloads them.

    ``iteration``: over weights, which ends when a phase needs states. ``has_host_parameters``:
    whether the config offloads parameters already.
    """

    sharding: Sharding
    gradients: Gradients
    binding: Binding
    device: torch.device
    iteration: OpenIteration
    has_host_parameters: bool
    _offloaded: OffloadedStates | None = None

    def offload_states(
        self,
        include: Iterable[Any] | None = None,
        device: Any = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Offload states from the accelerator to host memory until ``reload_states``.

        ``include``: names (OffloadStateTypeEnum); None means all. ``device``: ``cpu``, or ``none``,
        which does nothing. All copies are issued together and synchronized once, even with
        ``non_blocking``, because memory is freed only then. States already on the host are skipped.
        Raises ValueError for other devices or names, and if the config offloads parameters.
        """
        target = str(getattr(device, "value", device))
        del non_blocking
        if target == "none":
            return
        if target != "cpu":
            raise ValueError(f"offload_states: device must be 'cpu' or 'none', not {target!r}")
        if self.has_host_parameters:
            raise ValueError(
                "offload_states: zero_optimization.offload_param already keeps parameters on the "
                "host; remove one of the two"
            )
        kinds = set(State) if include is None else {_state(name) for name in include}
        if self._offloaded is None:
            self._offloaded = OffloadedStates(self.device)
        self.sharding.release()
        if self.device.type == "cpu":
            self._offloaded.states |= kinds
            return
        self._offloaded.offload(
            offloadable_states(self.sharding, self.gradients, self.binding), kinds, pin=pin_memory
        )
        gc.collect()
        torch.cuda.empty_cache()

    def reload_states(self, non_blocking: bool = False) -> None:
        """Copy the offloaded states back; return when they are on the device."""
        del non_blocking
        if self._offloaded is not None:
            self._offloaded.restore()

    def require(self, states: frozenset[State], call: str) -> None:
        """End an open weight iteration; raise RuntimeError if ``states`` are offloaded.

        ``call`` requires them.
        """
        self.check(states, call)
        self.iteration.end()

    def check(self, states: frozenset[State], call: str) -> None:
        """Raise RuntimeError if ``states``, required by ``call``, are offloaded."""
        if not self.sharding.has_model:
            raise RuntimeError(
                f"{call}: another initialize() has taken over this engine's model; use the engine "
                "it returned"
            )
        if self._offloaded is not None and self._offloaded.states & states:
            offloaded = ", ".join(sorted(self._offloaded.states & states))
            raise RuntimeError(f"{call}: {offloaded} are offloaded; call reload_states() first")

    @contextmanager
    def moving_tensors(self) -> Iterator[None]:
        """Move or cast tensors (``to``, ``cuda``, ``half`` ...), then restore the layout."""
        self.require(EVERYTHING, "moving or casting the model")
        with self.binding.as_sharded():
            self.sharding.before_move()
            yield
        self.sharding.restore()


def _state(name: Any) -> State:
    value = str(getattr(name, "value", name))
    try:
        return State(value)
    except ValueError:
        known = ", ".join(State)
        raise ValueError(
            f"offload_states: unknown states {value!r}; expected one of: {known}"
        ) from None


def offloadable_states(
    sharding: Sharding, gradients: Gradients, binding: Binding
) -> dict[State, list[Tensor]]:
    """Return all tensors of each kind of state, on any device."""
    module, optimizer = sharding.module, binding.optimizer
    masters = [*sharding.masters.values(), *binding.shards.values()]
    units = units_of(module)
    sums = [p.grad for p in (*module.parameters(), *masters) if p.grad is not None]
    sums += gradients.unreduced_sums()
    state = optimizer.state if optimizer is not None else {}
    return {
        State.optim_states: [
            value
            for entries in state.values()
            for value in entries.values()
            if isinstance(value, Tensor)
        ],
        State.hp_params: list(masters),
        State.lp_params: [shard_of(p) for p in module.parameters()],
        State.lp_grads: [
            *sums,
            *(g for each in sharded_parameters_of(units) for g in each.unreduced()),
        ],
        State.contiguous_grad_buffer: [],
    }
