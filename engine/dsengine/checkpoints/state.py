"""The training state that the engine passes to a checkpoint.

The state of an optimizer is saved by parameter name: independent of grouping, stage and world size.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES, OPTIMIZERS
from dsengine.checkpoints.group import CheckpointError, CheckpointMismatchError
from dsengine.parameters.names import named_persistent_buffers, named_shards
from dsengine.parameters.quantized import quantization_constants
from dsengine.torch_private.tensors import local_part

_IMPLEMENTATION = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Options that select an implementation: never loaded from a file."""

_MOMENTS = {
    declared.name.lower(): set(OPTIMIZER_CLASSES[declared.in_engine or declared.on_device].states)
    for declared in OPTIMIZERS.values()
}
"""States that an optimizer of a family requires unless its state is empty."""


def has_elements(value: object) -> TypeGuard[Tensor]:
    """Whether a state is per element, such as a moment: a tensor of at least one dimension."""
    return isinstance(value, Tensor) and value.dim() > 0


def state_key(name: str, entry: str) -> str:
    """Return the key of a parameter's state."""
    return f"optimizer.{name}:{entry}"


def name_and_entry(key: str) -> tuple[str, str]:
    """Split a key into parameter name and state; ("", "") for other keys."""
    name, _, entry = key.rpartition(":")
    return (name.removeprefix("optimizer."), entry) if key.startswith("optimizer.") else ("", "")


class Stateful(Protocol):
    """An object with saved state: scheduler, loss scale, counters, loader."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """The complete state of a run.

    ``module``: the model itself, not a DistributedDataParallel around it.
    ``optimizer``: the torch optimizer of the (sharded) parameters.
    ``masters``: by parameter name, its fp32 master weights if separate; saved in its place, and
    loading writes both.
    ``parts``: by name, the small states (``lr_scheduler``, ``loss_scale``, ``counters``,
    ``data``), equal on all ranks. ``load_lr_scheduler_states`` controls ``lr_scheduler``.
    ``description``: plain data for readers, such as stage and world size.
    ``load_target``: returns the tensor to load a parameter's optimizer state into, given its name
    and saved shape, or None for a new one; raises ValueError for one that does not fit.
    ``state_dtype``: returns the dtype of a new one, given its weight and that of the saved state.
    ``stage_described``: with pipeline stages, whether this rank describes the tensors of its stage,
    of which all its data-parallel ranks have the same; None without stages.
    ``file_backed``: tensors are views of files, and may exceed the memory.
    """

    module: nn.Module
    optimizer: Optimizer | None = None
    masters: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, Stateful] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
    load_target: Callable[[str, str, torch.Size], Tensor | None] = lambda *_: None
    state_dtype: Callable[[Tensor, torch.dtype], torch.dtype] = lambda weight, saved: saved
    stage_described: bool | None = None
    file_backed: bool = False

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the (sharded) parameters by name, each tied weight only once."""
        return dict(named_shards(self.module))

    def tied(self) -> dict[str, str]:
        """Return every alias of a tied weight, with the name under which it is saved."""
        first = {id(parameter): name for name, parameter in named_shards(self.module)}
        aliases = named_shards(self.module, remove_duplicate=False)
        return {name: first[id(p)] for name, p in aliases if first[id(p)] != name}

    def trained(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by name: masters if separate, otherwise parameters."""
        return {name: self.masters.get(name, p) for name, p in self.parameters().items()}

    def weights(self, *, exclude_frozen: bool = False) -> dict[str, Tensor]:
        """Return parameters (or their masters) and buffers by name."""
        weights: dict[str, Tensor] = {
            name: self.masters.get(name, parameter)
            for name, parameter in self.parameters().items()
            if parameter.requires_grad or not exclude_frozen
        }
        weights |= self.buffers(exclude_frozen=exclude_frozen)
        return {name: tensor.detach() for name, tensor in weights.items()}

    def buffers(self, *, exclude_frozen: bool = False) -> dict[str, Tensor]:
        """Return by name persistent buffers, and the constants of quantized, frozen weights."""
        constants = () if exclude_frozen else quantization_constants(self.module)
        return {**dict(named_persistent_buffers(self.module)), **dict(constants)}

    @torch.no_grad()
    def refresh_parameters(self) -> None:
        """Copy the masters to their parameters."""
        for name, parameter in self.parameters().items():
            master = self.masters.get(name, parameter)
            if master is not parameter:
                local_part(parameter).copy_(local_part(master))

    def named_optimizer(self) -> "NamedOptimizer | None":
        """Return the optimizer with the names of its parameters.

        Raises CheckpointError if one is not the model's.
        """
        if self.optimizer is None:
            return None
        parameters = self.trained()
        names = {id(parameter): name for name, parameter in parameters.items()}
        groups = self.optimizer.param_groups
        for parameter in (each for group in groups for each in group["params"]):
            if id(parameter) not in names:
                raise CheckpointError(
                    f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is "
                    "not one of the model's (sharded) parameters; it would have no effect"
                )
        members = [[names[id(parameter)] for parameter in group["params"]] for group in groups]
        return NamedOptimizer(self.optimizer, parameters, members)

    def restore_small(
        self, small: Mapping[str, Any], *, optimizer_states: bool, lr_scheduler_states: bool
    ) -> None:
        """Restore the ``parts`` and the ``optimizer`` values of a checkpoint's small states.

        The loss scale is loaded with the states of the optimizer.
        """
        values = small["optimizer"] if optimizer_states else None
        if values is not None and (optimizer := self.named_optimizer()) is not None:
            optimizer.restore_values(values)
        wanted = {"lr_scheduler": lr_scheduler_states, "loss_scale": optimizer_states}
        for name, part in self.parts.items():
            if name in small["parts"] and wanted.get(name, True):
                part.load_state_dict(small["parts"][name])


@dataclass(frozen=True, slots=True)
class NamedOptimizer:
    """An optimizer's state by parameter name. ``members``: the names of each group."""

    optimizer: Optimizer
    parameters: Mapping[str, Tensor]
    members: list[list[str]]

    def names(self) -> list[str]:
        """Return the names of the optimizer's parameters in order."""
        return [name for members in self.members for name in members]

    def _states(self) -> dict[str, dict[str, Any]]:
        """Return the state of each parameter, also of those that are in no group now."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        return {names[id(parameter)]: own for parameter, own in self.optimizer.state.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the per-element states by key."""
        return {
            state_key(name, entry): value.detach()
            for name, state in self._states().items()
            for entry, value in state.items()
            if has_elements(value)
        }

    def values(self) -> dict[str, Any]:
        """Return the remaining state: groups with their options, and scalars of each parameter."""
        scalars = {
            name: {
                entry: value.detach().cpu().clone() if isinstance(value, Tensor) else value
                for entry, value in state.items()
                if not has_elements(value)
            }
            for name, state in self._states().items()
        }
        groups = [
            {"names": members, "options": _saved_options(group)}
            for group, members in zip(self.optimizer.param_groups, self.members, strict=True)
        ]
        return {"type": type(self.optimizer).__name__, "groups": groups, "scalars": scalars}

    def targets(
        self,
        saved: Mapping[str, tuple[torch.Size, torch.dtype]],
        load_target: Callable[[str, str, torch.Size], Tensor | None],
        state_dtype: Callable[[Tensor, torch.dtype], torch.dtype],
    ) -> dict[str, Tensor]:
        """Return a tensor to load each saved entry into, by key, without changing the optimizer.

        That is the optimizer's current tensor if it fits, to save memory; otherwise that of
        ``load_target``, if any; otherwise a new one of ``state_dtype``, sharded like the parameter
        if shapes are equal, and unsharded if not (a factored moment). Raises
        CheckpointMismatchError for a state that cannot be loaded.
        """
        states = self._states()
        targets: dict[str, Tensor] = {}
        for key, (shape, dtype) in saved.items():
            name, entry = name_and_entry(key)
            if name not in self.parameters:
                continue
            parameter = self.parameters[name]
            dtype = state_dtype(parameter, dtype)
            present = states.get(name, {}).get(entry)
            if isinstance(present, Tensor) and (present.shape, present.dtype) == (shape, dtype):
                targets[key] = present.detach()
                continue
            try:
                target = load_target(name, entry, shape)
            except ValueError as error:
                raise CheckpointMismatchError(f"{error}") from None
            if target is None and shape == parameter.shape:
                target = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            elif target is None:
                target = torch.zeros(shape, dtype=dtype, device=parameter.device)
            targets[key] = target
        return targets

    def adopt(self, loaded: Mapping[str, Tensor], *, keep: bool = False) -> None:
        """Replace the per-element states with the loaded tensors.

        ``keep``: states that were not loaded stay as they are.
        """
        states: dict[str, dict[str, Any]] = {}
        for key, tensor in loaded.items():
            name, entry = name_and_entry(key)
            states.setdefault(name, {})[entry] = tensor
        for name, parameter in self.parameters.items():
            own = states.get(name, {})
            present = self.optimizer.state.get(parameter, {}) if keep else {}
            if not keep:
                self.optimizer.state.pop(parameter, None)
            if own:
                self.optimizer.state[parameter] = {**present, **own}

    def restore_values(self, values: Mapping[str, Any]) -> None:
        """Restore group options and scalars; groups are matched by their parameters' names."""
        saved_group = {name: group for group in values["groups"] for name in group["names"]}
        for group, members in zip(self.optimizer.param_groups, self.members, strict=True):
            match = next((saved_group[name] for name in members if name in saved_group), None)
            if match is not None:
                group.update(_saved_options(match["options"]))
            on_device = group.get("fused") or group.get("capturable")
            for parameter, name in zip(group["params"], members, strict=True):
                for entry, value in values["scalars"].get(name, {}).items():
                    if isinstance(value, Tensor):  # also moments of zero-dimensional parameters
                        is_count = entry == "step" and not on_device
                        value = value.to("cpu" if is_count else parameter.device, copy=True)
                    self.optimizer.state[parameter][entry] = value

    def check_states(self, saved: AbstractSet[str], saved_by: str) -> None:
        """Raise CheckpointMismatchError if ``saved`` lacks states that the optimizer requires."""
        kind = type(self.optimizer)
        is_foreign = kind.__module__.startswith("bitsandbytes.")
        required = {"state1"} if is_foreign else moments_of(kind.__name__)
        if required is None or required <= saved:
            return
        raise CheckpointMismatchError(
            f"the checkpoint has the optimizer state of {saved_by}, without "
            f"{sorted(required - saved)}, which {kind.__name__} requires; use the same "
            "optimizer or load with load_optimizer_states=False"
        )


def joined_values(
    first: dict[str, Any] | None, other: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the values of the optimizers of two pipeline stages, with the groups of both.

    Their positions mean nothing: parameters find the options of their group by name.
    """
    if first is None or other is None:
        return first or other
    known = {name for group in first["groups"] for name in group["names"]}
    groups = [
        {**group, "names": [name for name in group["names"] if name not in known]}
        for group in other["groups"]
    ]
    groups = first["groups"] + [group for group in groups if group["names"]]
    return {**first, "groups": groups, "scalars": first["scalars"] | other["scalars"]}


def _saved_options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in _IMPLEMENTATION}


def moments_of(type_name: str) -> set[str] | None:
    """Return the per-element states of an optimizer class by name; None if unknown."""
    lowered = type_name.lower()
    # Longest names first, although "adagrad" does not contain "adam".
    for family in sorted(_MOMENTS, key=len, reverse=True):
        if family in lowered:
            return _MOMENTS[family]
    return None
