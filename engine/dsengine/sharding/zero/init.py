"""zero.Init: builds a model of which each rank keeps its share."""

from collections.abc import Mapping
from typing import Any, cast
from weakref import ref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

import dsconfig
from dsengine.sharding.zero.partitioned import is_partitioned_parameter, partition, show_as
from dsengine.sharding.zero.rounded import round_parameter
from dsengine.sharding.zero.status import watch_writes
from dsengine.tiers import memory

TRIM_BYTES = 16 * memory.MEBI
"""Freed, and then given back to the system: the small pieces that stay of large parameters lie
between what glibc keeps for later, and would keep a whole model's worth of memory."""


class Init:
    """Inside, every module built is divided among the ranks as soon as it is finished.

        with dsengine.zero.Init(config_dict_or_path=config):
            model = Model()

    The weights are those that rank 0 would have without it. At no time does a rank hold more
    than its share and one module's own parameters. A module counts as finished when the next
    one begins; dividing one too early costs a gather, never a wrong value (see ``partitioned``).
    ``dtype`` casts floating-point parameters; ``enabled=False`` does nothing. ``module``: an
    existing one to divide. Of the config two things count already: under bf16 or fp16 the
    parameters of the finished model have that dtype (``initialize`` gets them unrounded), and
    ``enable_sanity_checks``. The rest of it and the remaining arguments are decided by the config
    given to ``initialize``.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        **unused: Any,
    ) -> None:
        del data_parallel_group, mem_efficient_linear, remote_device, pin_memory
        del mpu, unused
        given = config_dict_or_path if config_dict_or_path is not None else config
        settings = _read(given) if enabled and given is not None else {}
        self._watches = _block(settings, "zero_optimization").get("enable_sanity_checks") is True
        self._shows = _dtype_shown(settings) if dtype is None else None
        self._divided: list[ref[nn.Parameter]] = []
        """Parameters that are going to show another dtype, once the model is finished."""
        self.enabled = enabled
        self.dtype = dtype
        self._building: nn.Module | None = None
        self._whole: list[nn.Parameter] = []
        """Parameters of the module in work."""
        self._freed = 0
        if enabled and module is not None:
            _join_process_group()
            self._whole = list(module.parameters())
            self._divide()
            self._show()

    def __enter__(self) -> "Init":
        if not self.enabled:
            return self
        _join_process_group()
        self._hook = register_module_parameter_registration_hook(self._registered)
        self._module_init = nn.Module.__init__
        begin = self._begin

        def announced(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            begin(module)
            self._module_init(module, *args, **kwargs)

        nn.Module.__init__ = announced  # type: ignore[method-assign]
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if not self.enabled:
            return
        nn.Module.__init__ = self._module_init  # type: ignore[method-assign]
        self._hook.remove()
        if kind is None:
            self._divide()
            self._show()
            memory.trim_heap()
        self._whole, self._building = [], None

    def _begin(self, module: nn.Module) -> None:
        """Another module begins: the one in work has its parameters, divide them."""
        self._divide()
        self._building = module

    def _registered(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if module is not self._building:
            self._begin(module)
        self._whole.append(parameter)

    def _divide(self) -> None:
        whole, self._whole = self._whole, []
        for parameter in whole:
            partition(parameter, self.dtype)
            self._divided.append(ref(parameter))
            if self._watches:
                watch_writes(parameter)
            self._freed += parameter.nbytes
            if self._freed >= TRIM_BYTES:
                memory.trim_heap()
                self._freed = 0

    def _show(self) -> None:
        """Constructors, which draw and scale weights, have seen the dtype that they chose."""
        divided, self._divided = self._divided, []
        if self._shows is not None:
            for parameter in divided:
                if (alive := parameter()) is None:
                    continue
                if is_partitioned_parameter(alive):
                    show_as(alive, self._shows)
                elif alive.is_floating_point() and not alive.is_meta:  # nothing divides it
                    round_parameter(alive, self._shows)


def _read(config: Any) -> Mapping[str, Any]:
    settings = dsconfig.read(config).value
    return cast(Mapping[str, Any], settings) if isinstance(settings, Mapping) else {}


def _block(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = settings.get(name)
    return cast(Mapping[str, Any], block) if isinstance(block, Mapping) else {}


def _dtype_shown(settings: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype of 16 bits in which a model of this config computes, if it does."""
    bf16 = "bf16" if settings.get("bf16") is not None else "bfloat16"  # its former name
    for name, dtype in ((bf16, torch.bfloat16), ("fp16", torch.float16)):
        if dsconfig.block_values(name, _block(settings, name))["enabled"] is True:
            return dtype
    return None


def _join_process_group() -> None:
    if not dist.is_initialized():
        from dsengine.communication.start import init_distributed

        init_distributed(verbose=False)
