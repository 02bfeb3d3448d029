"""The ``Muon`` of a config: Muon for the model's matrices, Adam for the rest."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from dsconfig import OPTIMIZER_CLASSES
from dsengine.optimizers.gradients import evaluate

Groups = list[dict[str, Any]]

NOT_MATRICES = OPTIMIZER_CLASSES["MuonWithAdam"].leaves_to_adam
"""Parts of names of embedding tables: Muon would equalize updates of rare and frequent rows."""
MUON = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.0}
ADAM = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.0}
"""DeepSpeed's defaults for both halves."""
MUON_ONLY = ("momentum", "nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn")
ADAM_ONLY = ("betas", "eps")
SHARED = ("lr", "weight_decay")
IGNORED = (
    *("muon_lr", "adam_lr", "adam_w_mode", "ns_method", "per_head_muon"),
    *("torch_adam", "fp32_optimizer_states", "foreach"),
)
"""Read by neither half, or not here."""


class MuonWithAdam(Optimizer):
    """torch's Muon and Adam over the groups of one optimizer; ``use_muon`` selects the half.

    The halves share this optimizer's groups and states, so that code that replaces parameters or
    loads states does not depend on them.
    """

    def __init__(self, groups: Groups, *, adam_w_mode: bool = True) -> None:
        super().__init__(groups, {})
        adam = AdamW if adam_w_mode else Adam
        self._halves = [
            half([{k: v for k, v in group.items() if k != "use_muon"} for group in members])
            for half, members in ((torch.optim.Muon, self._of(True)), (adam, self._of(False)))
            if members
        ]
        flags = [group["use_muon"] for group in self.param_groups]
        self.param_groups = [group for half in self._halves for group in half.param_groups]
        for group, flag in zip(self.param_groups, sorted(flags, reverse=True), strict=True):
            group["use_muon"] = flag
        for half in self._halves:
            half.state = self.state

    def _of(self, use_muon: bool) -> Groups:
        return [group for group in self.param_groups if group["use_muon"] is use_muon]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient; return the result of ``closure``."""
        loss = evaluate(closure)
        for half in self._halves:
            half.step()
        return loss


def split_for_muon(
    groups: Groups, params: Mapping[str, Any], names: Mapping[Tensor, str]
) -> Groups:
    """Split each group into matrices, for Muon, and other parameters, for Adam.

    A group with ``use_muon`` is not split. ``params`` are those of the config: ``muon_lr`` and
    ``adam_lr`` override ``lr``, and a group's own settings override both. Raises ValueError for
    parameters of the config that neither half has.
    """
    unknown = sorted(params.keys() - {*SHARED, *MUON_ONLY, *ADAM_ONLY, *IGNORED})
    if unknown:
        raise ValueError(f"optimizer.params are invalid for Muon: unknown {', '.join(unknown)}")
    split: Groups = []
    for group in groups:
        own = {key: value for key, value in group.items() if key not in ("params", "use_muon")}
        for use_muon in (True, False):
            chosen = [p for p in group["params"] if _use_muon(group, p, names) is use_muon]
            if chosen:
                settings = _settings(params, use_muon) | _allowed(own, use_muon)
                split.append({"params": chosen, "use_muon": use_muon, **settings})
    return split


def _use_muon(group: Mapping[str, Any], parameter: Tensor, names: Mapping[Tensor, str]) -> bool:
    if "use_muon" in group:
        return bool(group["use_muon"])
    name = names.get(parameter, "").lower()
    shape = getattr(parameter, "ds_shape", parameter.shape)
    return len(shape) == 2 and not any(part in name for part in NOT_MATRICES)


def _settings(params: Mapping[str, Any], use_muon: bool) -> dict[str, Any]:
    defaults, own_rate = (MUON, "muon_lr") if use_muon else (ADAM, "adam_lr")
    chosen = _allowed(params, use_muon)
    if own_rate in params:
        chosen["lr"] = params[own_rate]
    return {**defaults, **chosen}


def _allowed(values: Mapping[str, Any], use_muon: bool) -> dict[str, Any]:
    """Return the options of this half."""
    known = (*SHARED, *(MUON_ONLY if use_muon else ADAM_ONLY))
    return {key: value for key, value in values.items() if key in known}
