"""What an engine does to make room on the device: its states leave, and come back."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dsengine.loop.state import EngineState
from dsengine.sharding.zero.dtype_view import shard_of
from dsengine.tiers.offloaded_states import OffloadedStates
from dsengine.tiers.offloaded_states import OffloadStateTypeEnum as State
from dsengine.torch_private import sharded_parameters_of, units_of

MODEL = frozenset({State.lp_params})
GRADIENTS = frozenset({State.lp_params, State.lp_grads})
EVERYTHING = frozenset(set(State) - {State.contiguous_grad_buffer})
"""What a phase has to find on the device; the last kind is made anew whenever it is needed."""


class OffloadingEngine(EngineState):
    """An engine whose states move between device and host."""

    _offloaded: OffloadedStates | None = None

    def offload_states(
        self,
        include: Iterable[Any] | None = None,
        device: Any = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Take states from the accelerator to host memory, until ``reload_states``.

        ``include``: names (OffloadStateTypeEnum); None means all. ``device``: ``cpu``, or
        ``none``, which does nothing. All copies are issued together and waited for once, with
        ``non_blocking`` too: memory cannot be free before. States that rest on the host already
        stay. Raises ValueError for another device or name, and where the config keeps
        parameters off the device.
        """
        target = str(getattr(device, "value", device))
        del non_blocking
        if target == "none":
            return
        if target != "cpu":
            raise ValueError(f"offload_states: states can go to 'cpu', not to {target!r}")
        if self.zero_offload_param() is not None:
            raise ValueError(
                "offload_states: with zero_optimization.offload_param parameters rest on the "
                "host already; remove one of the two"
            )
        kinds = set(State) if include is None else {_state(each) for each in include}
        if self._offloaded is None:
            self._offloaded = OffloadedStates(self.device)
        self.sharding.release()
        if self.device.type == "cpu":
            self._offloaded.states |= kinds
            return
        self._offloaded.offload(offloadable_states(self), kinds, pin=pin_memory)
        gc.collect()
        torch.cuda.empty_cache()

    def reload_states(self, non_blocking: bool = False) -> None:
        """Bring back what ``offload_states`` has taken away; returns when it is there."""
        del non_blocking
        if self._offloaded is not None:
            self._offloaded.restore()

    def need(self, states: frozenset[State], what: str) -> None:
        """Raise RuntimeError when ``what`` cannot be done because states are away."""
        if not self.sharding.has_model:
            raise RuntimeError(
                f"{what}: another initialize() has taken over the model of this engine: use the "
                "engine that it has returned"
            )
        if self._offloaded is not None and self._offloaded.states & states:
            away = ", ".join(sorted(self._offloaded.states & states))
            raise RuntimeError(f"{what}: {away} are offloaded; call reload_states() first")

    @contextmanager
    def moving_tensors(self) -> Iterator[None]:
        """``to``, ``cuda``, ``half`` ...: move what can be moved, then restore the layout."""
        self.need(EVERYTHING, "moving or casting the model")
        with self.optimizer_on_shards():
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
            f"offload_states: no states are called {value!r}; known: {known}"
        ) from None


def offloadable_states(engine: EngineState) -> dict[State, list[Tensor]]:
    """Every tensor that a kind of an engine's states is made of, on any device."""
    module, optimizer = engine.module, engine.optimizer
    masters = [*engine.sharding.masters.values(), *engine.optimizer_parameters()]
    units = units_of(module)
    gradients = [each.grad for each in (*module.parameters(), *masters) if each.grad is not None]
    gradients += engine.sharding.unreduced_sums()
    state = optimizer.state if optimizer is not None else {}
    return {
        State.optim_states: [
            value
            for entries in state.values()
            for value in entries.values()
            if isinstance(value, Tensor)
        ],
        State.hp_params: list(masters),
        State.lp_params: [shard_of(each) for each in module.parameters()],
        State.lp_grads: [
            *gradients,
            *(g for each in sharded_parameters_of(units) for g in each.unreduced()),
        ],
        State.contiguous_grad_buffer: [],
    }
