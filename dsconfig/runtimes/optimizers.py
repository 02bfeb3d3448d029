"""Which class DeepSpeed builds for an optimizer block, and what its constructor takes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsconfig.schema.version import Version

DEEPSPEED = (
    *("adagrad", "adam", "adamw", "lamb", "lion"),
    *("muadam", "muadamw", "musgd", "muon"),
)
"""DeepSpeed's own, in any letter case; any other type is a name in torch.optim, exactly."""

ONE_BIT = ("onebitadam", "onebitlamb", "zerooneadam")
ONE_BIT_GONE = Version(0, 19, 7)
"""The first release without the 1-bit optimizers."""

_COMMON = "lr weight_decay"
_ADAM = f"{_COMMON} betas eps amsgrad"
_TORCH = "foreach maximize differentiable"

TORCH: Mapping[str, frozenset[str]] = {
    name: frozenset(arguments.split())
    for name, arguments in {
        "ASGD": f"{_COMMON} lambd alpha t0 capturable {_TORCH}",
        "Adadelta": f"{_COMMON} rho eps capturable {_TORCH}",
        "Adafactor": f"{_COMMON} beta2_decay eps d foreach maximize",
        "Adagrad": f"{_COMMON} lr_decay initial_accumulator_value eps fused {_TORCH}",
        "Adam": f"{_ADAM} capturable fused decoupled_weight_decay {_TORCH}",
        "AdamW": f"{_ADAM} capturable fused {_TORCH}",
        "Adamax": f"{_COMMON} betas eps capturable {_TORCH}",
        "LBFGS": "lr max_iter max_eval tolerance_grad tolerance_change history_size line_search_fn",
        "Muon": f"{_COMMON} momentum nesterov ns_coefficients eps ns_steps adjust_lr_fn",
        "NAdam": f"{_COMMON} betas eps momentum_decay decoupled_weight_decay capturable {_TORCH}",
        "RAdam": f"{_COMMON} betas eps decoupled_weight_decay capturable {_TORCH}",
        "RMSprop": f"{_COMMON} alpha eps momentum centered capturable {_TORCH}",
        "Rprop": f"lr etas step_sizes capturable {_TORCH}",
        "SGD": f"{_COMMON} momentum dampening nesterov fused {_TORCH}",
        "SparseAdam": "lr betas eps maximize",
    }.items()
}
"""torch 2.13's optimizers by exact name, with the arguments of their constructors."""

TESTED = frozenset(
    {
        *("torch.Adam", "torch.AdamW", "torch.Adagrad", "FusedAdam", "DeepSpeedCPUAdam"),
        *("DeepSpeedCPUAdagrad", "FusedLion", "DeepSpeedCPULion", "MuonWithAuxAdam"),
    }
)
"""Classes that ZeRO takes without zero_allow_untested_optimizer."""

_MUON = "lr momentum weight_decay betas eps muon_lr adam_lr ns_method per_head_muon "
_MUON_ADAM = "adam_w_mode torch_adam fp32_optimizer_states foreach"
MUON_ARGUMENTS = frozenset((_MUON + _MUON_ADAM).split())
"""All that Muon looks at; it drops any other argument without a word."""


class Built(NamedTuple):
    """The class, and the arguments it takes from ``params``; None where any is taken."""

    name: str
    arguments: frozenset[str] | None
    package: str | None = None
    """A package that must be installed besides DeepSpeed and torch."""

    @property
    def is_tested(self) -> bool:
        return self.name in TESTED


def _arguments(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ADAM_SWITCHES = "adam_w_mode torch_adam fp32_optimizer_states"
_FUSED_ADAM = _arguments(f"{_ADAM} bias_correction set_grad_none {_ADAM_SWITCHES}")
_CPU_ADAM = _arguments(f"{_ADAM} bias_correction {_ADAM_SWITCHES}")
_FUSED_LAMB = _arguments(
    f"{_ADAM} bias_correction eps_inside_sqrt max_grad_norm max_coeff min_coeff"
)


def built(name: str, params: Mapping[str, Any], *, offloaded: bool) -> Built | None:
    """What a ``type`` leads to; None for a name that leads nowhere."""
    lower = name.lower()
    if lower in ("adam", "adamw"):
        return _adam(lower, params, offloaded)
    if lower == "adagrad":
        if offloaded:
            arguments = _arguments(f"{_COMMON} eps amsgrad fp32_optimizer_states")
            return Built("DeepSpeedCPUAdagrad", arguments)
        return Built("torch.Adagrad", TORCH["Adagrad"])
    if lower == "lion":
        if offloaded:
            return Built("DeepSpeedCPULion", _arguments(f"{_COMMON} betas fp32_optimizer_states"))
        return Built("FusedLion", _arguments(f"{_COMMON} betas set_grad_none"))
    if lower == "lamb":
        return Built("FusedLamb", _FUSED_LAMB)
    if lower == "muon":
        return Built("MuonWithAuxAdam", None)
    if lower in DEEPSPEED:
        return Built(name, None, package="mup")
    return Built(f"torch.{name}", TORCH[name]) if name in TORCH else None


def _adam(lower: str, params: Mapping[str, Any], offloaded: bool) -> Built:
    decoupled = lower == "adamw" or bool(params.get("adam_w_mode", True))
    if params.get("torch_adam", False):
        name = "AdamW" if decoupled else "Adam"
        return Built(f"torch.{name}", TORCH[name] | _arguments(_ADAM_SWITCHES))
    if offloaded:
        return Built("DeepSpeedCPUAdam", _CPU_ADAM)
    return Built("FusedAdam", _FUSED_ADAM)
