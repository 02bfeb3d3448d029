"""Every optimizer: the types that a config may name, and the classes that they lead to.

Two tables. A type says since when and in which spelling DeepSpeed knows it, which class is built
for it, and where its arguments are declared (``schema/blocks``). A class says what it keeps for
each weight and how it updates. Who adds an optimizer adds a line here and its block of arguments.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsconfig.schema.version import Version

ADAM_STATES = ("exp_avg", "exp_avg_sq")
TORCH = "torch."
"""How names of classes of torch.optim begin; other names are bare."""


class Scratch(NamedTuple):
    """What a step holds beside gradient and state, in tensors of the size it works on.

    Sources: the code of each class; for torch's lists and loops dry runs, equal to the byte.
    """

    alone: int = 0
    """Of one tensor by itself, such as a flat partition; 0 for fused kernels."""
    lists: int = 0
    """Where a list of tensors is updated at once (``foreach``)."""
    loops: int = 0
    """One tensor after the other, whose names still hold what the one before has needed."""
    decay: str = ""
    """Which of ``alone``, ``lists`` and ``loops`` a weight decay needs one more in."""

    def given(self, params: Mapping[str, Any]) -> "Scratch":
        """What a step holds with these arguments."""
        more = self.decay if params.get("weight_decay") else ""
        alone, lists, loops = ("alone" in more), ("lists" in more), ("loops" in more)
        return Scratch(self.alone + alone, self.lists + lists, self.loops + loops)


NO_SCRATCH = Scratch()


class OptimizerClass(NamedTuple):
    """A class that updates weights, of DeepSpeed, torch, this engine or a script.

    ``states`` are the tensors of a weight's size that it keeps, in the weight's dtype, by their
    names in ``optimizer.state``; ``states_with`` maps an argument that is on to one more.
    ``other_bytes`` are bytes per weight of anything else it keeps (8-bit moments with their fp32
    scales, rows and columns). ``is_tested``: ZeRO takes it without
    ``zero_allow_untested_optimizer``. Sources: the code of each class.
    """

    name: str
    states: tuple[str, ...] = ()
    states_with: Mapping[str, str] = {}
    other_bytes: float = 0.0
    scratch: Scratch = NO_SCRATCH
    is_fused: bool = False
    is_eager: bool = False
    """Whether the states are made with the optimizer, not in its first step."""
    is_tested: bool = False
    is_elementwise: bool = True
    """Whether the update of an element reads no other one: any part can be stepped alone."""
    needs_closure: bool = False
    """Whether a step evaluates the loss several times."""
    needs_sparse: bool = False
    """Whether it takes sparse gradients only."""
    torch_fuses_on: str = ""
    """The device for which torch has a fused kernel of it in every release tried; or ``any``."""
    leaves_to_adam: tuple[str, ...] = ()
    """Parts of names whose matrices it leaves to an Adam, with everything that is no matrix."""
    takes_any_argument: bool = False
    drops_unknown_arguments: bool = False
    """Whether it leaves aside what it does not know, without a word."""
    refuses_zero: bool = False
    """Whether DeepSpeed stops when ZeRO is on, whatever else is set."""
    package: str | None = None
    """What must be installed besides DeepSpeed and torch."""

    @property
    def is_torch(self) -> bool:
        return self.name.startswith(TORCH)

    def is_torch_fused_on(self, device: str) -> bool:
        """Whether torch has a fused kernel of it for a device (``cpu``, ``cuda`` ...)."""
        return self.torch_fuses_on in ("any", device)

    def states_for(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """The tensors kept for each weight with these arguments."""
        more = tuple(state for argument, state in self.states_with.items() if params.get(argument))
        return self.states + more


_SINGLY, _ALWAYS = "alone, loops", "alone, lists, loops"
_ONE, _TWO = Scratch(1, 1, 1), Scratch(2, 2, 2)


def _adam(name: str, **more: Any) -> OptimizerClass:
    return OptimizerClass(name, ADAM_STATES, is_fused=True, **more)


def _torch(name: str, *states: str, scratch: Scratch = _TWO, **more: Any) -> OptimizerClass:
    return OptimizerClass(f"{TORCH}{name}", states, scratch=scratch, **more)


def _torch_adam(name: str, decay: str) -> OptimizerClass:
    scratch = Scratch(alone=2, lists=1, loops=3, decay=decay)
    more: Any = {"is_tested": True, "torch_fuses_on": "any"}
    return _torch(name, *ADAM_STATES, states_with=_AMSGRAD, scratch=scratch, **more)


def _mup(name: str, *states: str, **more: Any) -> OptimizerClass:
    return OptimizerClass(name, states, takes_any_argument=True, package="mup", **more)


def _one_bit(name: str, *more: str) -> OptimizerClass:
    """Its second error is of one rank's share, and not counted."""
    states = (*ADAM_STATES, *more)
    return OptimizerClass(name, states, is_elementwise=False, refuses_zero=True)


def _eight_bit(name: str) -> OptimizerClass:
    """One byte for each moment, and one fp32 scale per block of 256."""
    bytes_ = 2 * (1 + 4 / 256)
    return OptimizerClass(name, other_bytes=bytes_, is_fused=True, package="bitsandbytes")


_AMSGRAD = {"amsgrad": "max_exp_avg_sq"}
_MOMENTUM = {"momentum": "momentum_buffer"}
_TABLES = ("embed", "lm_head")
_FACTORED = 0.004
"""Adafactor's row and column per matrix: next to nothing."""

OPTIMIZER_CLASSES: Mapping[str, OptimizerClass] = {
    each.name: each
    for each in (
        _adam("FusedAdam", is_tested=True),
        _adam("DeepSpeedCPUAdam", is_tested=True),
        _adam("ZenFlowCPUAdam", is_tested=True),
        _adam("FusedLamb", is_elementwise=False),
        OptimizerClass("FusedLion", ("exp_avg",), is_fused=True, is_tested=True),
        OptimizerClass("DeepSpeedCPULion", ("exp_avg",), is_fused=True, is_tested=True),
        OptimizerClass(
            "DeepSpeedCPUAdagrad", ("exp_avg_sq",), is_fused=True, is_eager=True, is_tested=True
        ),
        OptimizerClass(
            "MuonWithAuxAdam",
            ("momentum_buffer",),
            is_tested=True,
            is_elementwise=False,
            leaves_to_adam=_TABLES,
            drops_unknown_arguments=True,
        ),
        _mup("MuAdam", *ADAM_STATES, states_with=_AMSGRAD, scratch=_TWO),
        _mup("MuAdamW", *ADAM_STATES, states_with=_AMSGRAD, scratch=_TWO),
        _mup("MuSGD", states_with=_MOMENTUM),
        _one_bit("OnebitAdam", "worker_error"),
        _one_bit("OnebitLamb", "exp_avg_sq_fresh", "worker_error"),
        _one_bit("ZeroOneAdam", "momentum_accumulator", "worker_error"),
        _torch("ASGD", "ax", scratch=Scratch(1, 1, 1, _SINGLY)),
        _torch("Adadelta", "square_avg", "acc_delta", scratch=Scratch(2, 2, 3, _ALWAYS)),
        _torch("Adafactor", other_bytes=_FACTORED, scratch=_ONE, is_elementwise=False),
        _torch(
            "Adagrad",
            "sum",
            scratch=Scratch(1, 2, 2, _SINGLY),  # lists: the root of the sums, scaled gradients
            is_eager=True,
            is_tested=True,
            torch_fuses_on="cpu",
        ),
        _torch_adam("Adam", decay=_SINGLY),
        _torch_adam("AdamW", decay=""),
        _torch("Adamax", "exp_avg", "exp_inf", scratch=Scratch(1, 1, 1, _SINGLY)),
        _torch("LBFGS", "d", "prev_flat_grad", is_elementwise=False, needs_closure=True),
        _torch("NAdam", *ADAM_STATES, scratch=Scratch(2, 1, 3, _ALWAYS)),
        _torch("RAdam", *ADAM_STATES, scratch=Scratch(2, 1, 2, _SINGLY)),
        _torch(
            "RMSprop",
            "square_avg",
            states_with={**_MOMENTUM, "centered": "grad_avg"},
            scratch=Scratch(1, 1, 2, _ALWAYS),
        ),
        _torch("Rprop", "prev", "step_size", scratch=Scratch(3, 2, 3)),
        _torch("SGD", states_with=_MOMENTUM, scratch=Scratch(decay=_ALWAYS), torch_fuses_on="any"),
        _torch("SparseAdam", *ADAM_STATES, is_elementwise=False, needs_sparse=True),
        OptimizerClass("Lion", ("exp_avg",), scratch=_ONE),
        OptimizerClass(
            "MuonWithAdam",
            ("momentum_buffer",),
            scratch=_TWO,
            is_elementwise=False,
            leaves_to_adam=_TABLES,
        ),
        _eight_bit("Adam8bit"),
        _eight_bit("AdamW8bit"),
        _eight_bit("PagedAdam8bit"),
        _eight_bit("PagedAdamW8bit"),
    )
}
"""By name. ``Lion`` and ``MuonWithAdam`` are this engine's."""


class OptimizerType(NamedTuple):
    """What ``optimizer.type`` may say.

    ``since`` and ``until`` are the first and last release in which it is DeepSpeed's own, read in
    any letter case and built as ``on_device`` or, with an offloaded optimizer, ``on_host``; None
    for a class of torch.optim, spelled exactly. ``in_engine`` is the class that dsengine builds,
    None where it builds none.
    """

    name: str
    block: str
    """The module below ``schema.blocks`` that declares its arguments."""
    on_device: str
    on_host: str
    in_engine: str | None = None
    since: Version | None = None
    until: Version | None = None

    @property
    def is_own(self) -> bool:
        return self.since is not None

    def is_own_at(self, release: Version) -> bool:
        """Whether that release builds it by itself, whatever torch has."""
        if self.since is None or release < self.since:
            return False
        return self.until is None or release <= self.until

    def class_in_deepspeed(self, params: Mapping[str, Any], *, offloaded: bool) -> str:
        """The class that DeepSpeed builds where the type is its own."""
        if params.get("torch_adam", False) and self.name in ("Adam", "AdamW"):
            return _adam_of(self.name, params)
        return self.on_host if offloaded else self.on_device

    def class_in_engine(self, params: Mapping[str, Any]) -> str | None:
        """The class that dsengine builds; None where it builds none."""
        return _adam_of(self.name, params) if self.name == "Adam" else self.in_engine

    def is_known_at(self, release: Version) -> bool:
        """Whether that release builds it, itself or as torch's class of this very name."""
        return f"{TORCH}{self.name}" in OPTIMIZER_CLASSES or self.is_own_at(release)


def _adam_of(name: str, params: Mapping[str, Any]) -> str:
    """Adam means AdamW unless its decay is coupled by name."""
    return f"{TORCH}AdamW" if name == "AdamW" or params.get("adam_w_mode", True) else f"{TORCH}Adam"


def _own(
    name: str,
    block: str,
    since: str,
    on_device: str,
    on_host: str | None = None,
    in_engine: str | None = None,
    until: str | None = None,
) -> OptimizerType:
    last = Version.parse(until) if until else None
    first = Version.parse(since)
    return OptimizerType(name, block, on_device, on_host or on_device, in_engine, first, last)


def _of_torch(name: str) -> OptimizerType:
    built = f"{TORCH}{name}"
    return OptimizerType(name, "torch_optimizers", built, built, built)


_ADAM, _BESIDE, _ONE_BIT = "optimizer_params", "deepspeed_optimizers", "onebit_optimizers"
_LAST = "0.19.6"
"""The last release with the optimizers that compress what they send."""

OPTIMIZERS: Mapping[str, OptimizerType] = {
    each.name: each
    for each in (
        _own("Adam", _ADAM, "0.3.0", "FusedAdam", "DeepSpeedCPUAdam", "torch.Adam"),
        _own("AdamW", _ADAM, "0.3.11", "FusedAdam", "DeepSpeedCPUAdam", "torch.AdamW"),
        _own("Adagrad", _BESIDE, "0.5.5", "torch.Adagrad", "DeepSpeedCPUAdagrad", "torch.Adagrad"),
        _own("Lamb", _BESIDE, "0.3.0", "FusedLamb"),
        _own("Lion", _BESIDE, "0.11.0", "FusedLion", "DeepSpeedCPULion", "Lion"),
        _own("Muon", _BESIDE, "0.17.6", "MuonWithAuxAdam", None, "MuonWithAdam"),
        _own("MuAdam", _BESIDE, "0.10.2", "MuAdam"),
        _own("MuAdamW", _BESIDE, "0.10.2", "MuAdamW"),
        _own("MuSGD", _BESIDE, "0.10.2", "MuSGD"),
        _of_torch("ASGD"),
        _of_torch("Adadelta"),
        _of_torch("Adafactor"),
        _of_torch("Adamax"),
        _of_torch("LBFGS"),
        _of_torch("NAdam"),
        _of_torch("RAdam"),
        _of_torch("RMSprop"),
        _of_torch("Rprop"),
        _of_torch("SGD"),
        _of_torch("SparseAdam"),
        _own("OneBitAdam", _ONE_BIT, "0.3.0", "OnebitAdam", until=_LAST),
        _own("OneBitLamb", _ONE_BIT, "0.3.16", "OnebitLamb", until=_LAST),
        _own("ZeroOneAdam", _ONE_BIT, "0.6.1", "ZeroOneAdam", until=_LAST),
    )
}
"""By name, DeepSpeed's own first."""

OWN = tuple(each.name for each in OPTIMIZERS.values() if each.is_own)
_OWN_IN_LOWER = {name.lower(): OPTIMIZERS[name] for name in OWN}


def optimizer_type(name: str) -> OptimizerType | None:
    """The type that a config names, in DeepSpeed's spelling; None for an unknown name."""
    return _OWN_IN_LOWER.get(name.lower()) or OPTIMIZERS.get(name)
