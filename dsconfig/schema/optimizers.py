"""Optimizer types of a config and the classes they create.

Two tables. A type has its DeepSpeed releases and spelling, the class that is created, and the
module with its arguments (``schema/blocks``). A class has the states per weight and properties of
the update. To add an optimizer, add a line here and its block of arguments.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsconfig.schema.version import Version

ADAM_STATES = ("exp_avg", "exp_avg_sq")
TORCH = "torch."
"""Prefix of torch.optim class names; other names have no prefix."""


class Scratch(NamedTuple):
    """Temporary tensors of a step, besides gradient and states, in units of the updated tensor.

    Sources: the code of each class; torch's lists and loops match dry runs to the byte.
    """

    alone: int = 0
    """For a single tensor, such as a flat partition; 0 for fused kernels."""
    lists: int = 0
    """If a list of tensors is updated at once (``foreach``)."""
    loops: int = 0
    """If tensors are updated in a loop, including temporaries of the previous iteration."""
    decay: str = ""
    """Which of ``alone``, ``lists`` and ``loops`` weight decay increases by one."""

    def given(self, params: Mapping[str, Any]) -> "Scratch":
        """Return the temporaries with these arguments."""
        more = self.decay if params.get("weight_decay") else ""
        alone, lists, loops = ("alone" in more), ("lists" in more), ("loops" in more)
        return Scratch(self.alone + alone, self.lists + lists, self.loops + loops)


NO_SCRATCH = Scratch()


class OptimizerClass(NamedTuple):
    """Optimizer class of DeepSpeed, torch, dsengine or a script.

    ``states``: names in ``optimizer.state`` of tensors with the size and dtype of the weight;
    ``states_with``: additional state by enabled argument.
    ``other_bytes``: bytes per weight of other states (8-bit moments with fp32 scales, factored
    moments). ``is_tested``: ZeRO accepts it without ``zero_allow_untested_optimizer``.
    Sources: the code of each class.
    """

    name: str
    states: tuple[str, ...] = ()
    states_with: Mapping[str, str] = {}
    other_bytes: float = 0.0
    flat_states: tuple[str, ...] = ()
    """Tensors kept in addition for a flat partition, whose rows and columns are not known."""
    scratch: Scratch = NO_SCRATCH
    is_fused: bool = False
    is_eager: bool = False
    """Whether states are created at construction, not in the first step."""
    is_tested: bool = False
    is_elementwise: bool = True
    """Whether the update is element-wise, so that any slice can be updated separately."""
    needs_closure: bool = False
    """Whether a step evaluates the loss several times."""
    needs_sparse: bool = False
    """Whether it accepts only sparse gradients."""
    torch_fuses_on: str = ""
    """Device for which all supported torch releases have a fused kernel, or ``any``."""
    leaves_to_adam: tuple[str, ...] = ()
    """Substrings of names of matrices that are updated by Adam, like all non-matrices."""
    takes_any_argument: bool = False
    ignores_unknown_arguments: bool = False
    """Whether it silently ignores unknown arguments."""
    refuses_zero: bool = False
    """Whether DeepSpeed rejects it with ZeRO."""
    package: str | None = None
    """Package that is required besides DeepSpeed and torch."""

    @property
    def is_torch(self) -> bool:
        return self.name.startswith(TORCH)

    def is_torch_fused_on(self, device: str) -> bool:
        """Return whether torch has a fused kernel for a device (``cpu``, ``cuda`` ...)."""
        return self.torch_fuses_on in ("any", device)

    def states_for(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the state tensors per weight with these arguments."""
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
    """Return a 1-bit optimizer; its server error, sharded over ranks, is not counted."""
    states = (*ADAM_STATES, *more)
    return OptimizerClass(name, states, is_elementwise=False, refuses_zero=True)


def _quantized(
    name: str, states: int, bits: int = 8, package: str = "bitsandbytes"
) -> OptimizerClass:
    """Return a class with quantized states and one fp32 scale per block of 256.

    bitsandbytes 0.50, optim/optimizer.py (``get_state_buffer``, blocks of 256); torchao's classes
    with the block size that transformers 5.23 passes.
    """
    bytes_ = states * (bits / 8 + 4 / 256)
    return OptimizerClass(name, other_bytes=bytes_, is_fused=True, package=package)


def _bitsandbytes(name: str, *states: str) -> OptimizerClass:
    return OptimizerClass(name, states, is_fused=True, package="bitsandbytes")


def _upper_bound(name: str, package: str) -> OptimizerClass:
    """Return AdamW's states for a class that keeps low-rank ones for some modules."""
    return OptimizerClass(name, ADAM_STATES, scratch=_TWO, is_elementwise=False, package=package)


_AMSGRAD = {"amsgrad": "max_exp_avg_sq"}
_MOMENTUM = {"momentum": "momentum_buffer"}
_TABLES = ("embed", "lm_head")
_FACTORED = 0.004
"""Adafactor's row and column factors per matrix, negligible."""

OPTIMIZER_CLASSES: Mapping[str, OptimizerClass] = {
    cls.name: cls
    for cls in (
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
            ignores_unknown_arguments=True,
        ),
        _mup("MuAdam", *ADAM_STATES, states_with=_AMSGRAD, scratch=_TWO),
        _mup("MuAdamW", *ADAM_STATES, states_with=_AMSGRAD, scratch=_TWO),
        _mup("MuSGD", states_with=_MOMENTUM),
        _one_bit("OnebitAdam", "worker_error"),
        _one_bit("OnebitLamb", "exp_avg_sq_fresh", "worker_error"),
        _one_bit("ZeroOneAdam", "momentum_accumulator", "worker_error"),
        _torch("ASGD", "ax", scratch=Scratch(1, 1, 1, _SINGLY)),
        _torch("Adadelta", "square_avg", "acc_delta", scratch=Scratch(2, 2, 3, _ALWAYS)),
        _torch(
            "Adafactor",
            other_bytes=_FACTORED,
            flat_states=("variance",),
            scratch=_ONE,
            is_elementwise=False,
        ),
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
        OptimizerClass("Lamb", ADAM_STATES, scratch=_TWO, is_elementwise=False),
        OptimizerClass(
            "MuonWithAdam",
            ("momentum_buffer",),
            scratch=_TWO,
            is_elementwise=False,
            leaves_to_adam=_TABLES,
        ),
        _quantized("Adam8bit", 2),
        _quantized("AdamW8bit", 2),
        _quantized("PagedAdam8bit", 2),
        _quantized("PagedAdamW8bit", 2),
        _bitsandbytes("PagedAdamW", *ADAM_STATES),
        _bitsandbytes("AdEMAMix", "m1", "m2", "nu"),
        _quantized("AdEMAMix8bit", 3),
        _bitsandbytes("PagedAdEMAMix", "m1", "m2", "nu"),
        _quantized("PagedAdEMAMix8bit", 3),
        _bitsandbytes("Lion32bit", "exp_avg"),
        _quantized("Lion8bit", 1),
        _bitsandbytes("PagedLion", "exp_avg"),
        _quantized("PagedLion8bit", 1),
        _bitsandbytes("RMSprop32bit", "square_avg"),
        _quantized("RMSprop8bit", 1),
        _quantized("AdamW4bit", 2, bits=4, package="torchao"),
        _quantized("torchao.AdamW8bit", 2, package="torchao"),
        OptimizerClass(
            "transformers.Adafactor",
            other_bytes=_FACTORED,
            flat_states=("exp_avg_sq",),
            scratch=_ONE,
            is_elementwise=False,
            package="transformers",
        ),
        OptimizerClass("AnyPrecisionAdamW", ADAM_STATES, scratch=_TWO, package="torchdistx"),
        _upper_bound("GaLoreAdamW", "galore_torch"),
        _upper_bound("GaLoreAdamW8bit", "galore_torch"),
        _upper_bound("GaLoreAdafactor", "galore_torch"),
        _upper_bound("APOLLOAdamW", "apollo_torch"),
        OptimizerClass("Lomo", is_elementwise=False, package="lomo_optim"),
        OptimizerClass(
            "AdaLomo", other_bytes=_FACTORED, is_elementwise=False, package="lomo_optim"
        ),
        OptimizerClass("GrokAdamW", (*ADAM_STATES, "grok_ema"), scratch=_TWO, package="grokadamw"),
        OptimizerClass(
            "RAdamScheduleFree", ("z", "exp_avg_sq"), scratch=_TWO, package="schedulefree"
        ),
        OptimizerClass(
            "AdamWScheduleFree", ("z", "exp_avg_sq"), scratch=_TWO, package="schedulefree"
        ),
        OptimizerClass("SGDScheduleFree", ("z",), scratch=_ONE, package="schedulefree"),
        OptimizerClass("StableAdamW", ADAM_STATES, scratch=_TWO, package="torch-optimi"),
    )
}
"""By name. ``Lamb``, ``Lion`` and ``MuonWithAdam`` are dsengine's."""


class OptimizerType(NamedTuple):
    """Value of ``optimizer.type``.

    ``since`` and ``until``: first and last release with DeepSpeed's own implementation, whose name
    is case-insensitive and which is ``on_device`` or, with optimizer offload, ``on_host``; None for
    torch.optim classes (exact spelling). ``in_engine``: the class that dsengine creates, or None.
    """

    name: str
    block: str
    """Module of ``schema.blocks`` that declares its arguments."""
    on_device: str
    on_host: str
    in_engine: str | None = None
    since: Version | None = None
    until: Version | None = None

    @property
    def is_own(self) -> bool:
        return self.since is not None

    def is_own_at(self, release: Version) -> bool:
        """Return whether a release has its own implementation."""
        if self.since is None or release < self.since:
            return False
        return self.until is None or release <= self.until

    def class_in_deepspeed(self, params: Mapping[str, Any], *, offloaded: bool) -> str:
        """Return the class that DeepSpeed creates for its own type."""
        if params.get("torch_adam", False) and self.name in ("Adam", "AdamW"):
            return _adam_of(self.name, params)
        return self.on_host if offloaded else self.on_device

    def class_in_engine(self, params: Mapping[str, Any]) -> str | None:
        """Return the class that dsengine creates, or None."""
        return _adam_of(self.name, params) if self.name == "Adam" else self.in_engine

    def is_known_at(self, release: Version) -> bool:
        """Return whether a release supports it, itself or as torch's class of this name."""
        return f"{TORCH}{self.name}" in OPTIMIZER_CLASSES or self.is_own_at(release)


def _adam_of(name: str, params: Mapping[str, Any]) -> str:
    """Return torch's AdamW, or Adam for type Adam with ``adam_w_mode: false``."""
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
"""Last release with 1-bit optimizers."""

OPTIMIZERS: Mapping[str, OptimizerType] = {
    type_.name: type_
    for type_ in (
        _own("Adam", _ADAM, "0.3.0", "FusedAdam", "DeepSpeedCPUAdam", "torch.Adam"),
        _own("AdamW", _ADAM, "0.3.11", "FusedAdam", "DeepSpeedCPUAdam", "torch.AdamW"),
        _own("Adagrad", _BESIDE, "0.5.5", "torch.Adagrad", "DeepSpeedCPUAdagrad", "torch.Adagrad"),
        _own("Lamb", _BESIDE, "0.3.0", "FusedLamb", None, "Lamb"),
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

OWN = tuple(type_.name for type_ in OPTIMIZERS.values() if type_.is_own)
_OWN_IN_LOWER = {name.lower(): OPTIMIZERS[name] for name in OWN}


def optimizer_type(name: str) -> OptimizerType | None:
    """Return the type of a name as written in a config, or None if it is unknown."""
    return _OWN_IN_LOWER.get(name.lower()) or OPTIMIZERS.get(name)
