"""``zero.Init``: build a model with its parameters partitioned over ranks."""

from collections.abc import Mapping
from typing import Any, cast
from weakref import ref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

import dsconfig
from dsengine.sharding.zero.parameter_attributes import install_parameter_attributes
from dsengine.sharding.zero.partitioned import is_partitioned_parameter, partition, set_dtype
from dsengine.sharding.zero.rounded import round_parameter
from dsengine.sharding.zero.status import watch_writes
from dsengine.sharding.zero.uninitialized import MarkUninitialized, expect_checkpoint, is_loading
from dsengine.tiers import memory

TRIM_BYTES = 16 * memory.MEBI
"""Freed bytes after which the heap is trimmed.

glibc would otherwise keep the memory of freed full parameters, because the small shards are
allocated between them.
"""


class Init:
    """Partitions every module built inside the context as soon as it is complete.

            with dsengine.zero.Init(config_dict_or_path=config):
                model = Model()

    The weights equal those rank 0 would have without it; memory that a constructor does not write
    is NaN. A rank never holds more than its shards
    and one module's own parameters. A module counts as complete once the next one starts;
    partitioning one too early costs a gather but does not change values (see ``partitioned``).
    ``dtype`` casts floating-point parameters; ``enabled=False`` does nothing. ``module``: an
    existing module to partition. Two settings of the config apply here: under bf16 or fp16 the
    parameters of the complete model have that dtype (``initialize`` gets the unrounded values), and
    ``enable_sanity_checks``. The other settings and arguments come from the config given to
    ``initialize``.
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
        config_argument = config_dict_or_path if config_dict_or_path is not None else config
        settings = _read(config_argument) if enabled and config_argument is not None else {}
        self._checks_writes = (
            _block(settings, "zero_optimization").get("enable_sanity_checks") is True
        )
        self._view_dtype = _compute_dtype(settings) if dtype is None else None
        self._partitioned: list[ref[nn.Parameter]] = []
        """Parameters that get the compute dtype once the model is complete."""
        self.enabled = enabled
        self.dtype = dtype
        self._is_loading = False
        self._building: nn.Module | None = None
        self._pending: list[nn.Parameter] = []
        """Parameters of the module under construction."""
        self._freed = 0
        if enabled:
            install_parameter_attributes()
        if enabled and module is not None:
            _join_process_group()
            self._pending = list(module.parameters())
            self._partition()
            self._apply_dtype()

    def __enter__(self) -> "Init":
        if not self.enabled:
            return self
        _join_process_group()
        self._hook = register_module_parameter_registration_hook(self._registered)
        self._module_init = nn.Module.__init__
        begin = self._begin_module

        def init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            begin(module)
            self._module_init(module, *args, **kwargs)

        nn.Module.__init__ = init  # type: ignore[method-assign]
        self._is_loading = is_loading()
        self._marking = MarkUninitialized()
        self._marking.__enter__()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if not self.enabled:
            return
        self._marking.__exit__(kind, *error)
        nn.Module.__init__ = self._module_init  # type: ignore[method-assign]
        self._hook.remove()
        if kind is None:
            self._partition()
            self._apply_dtype()
            memory.trim_heap()
        self._pending, self._building = [], None

    def _begin_module(self, module: nn.Module) -> None:
        """Start a module: the previous one has its parameters, so partition them."""
        self._partition()
        self._building = module

    def _registered(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if module is not self._building:
            self._begin_module(module)
        self._pending.append(parameter)

    def _partition(self) -> None:
        pending, self._pending = self._pending, []
        for parameter in pending:
            partition(parameter, self.dtype)
            if self._is_loading:
                expect_checkpoint(parameter)
            self._partitioned.append(ref(parameter))
            if self._checks_writes:
                watch_writes(parameter)
            self._freed += parameter.nbytes
            if self._freed >= TRIM_BYTES:
                memory.trim_heap()
                self._freed = 0

    def _apply_dtype(self) -> None:
        """Set the compute dtype; constructors have seen the dtype they chose."""
        partitioned, self._partitioned = self._partitioned, []
        if self._view_dtype is not None:
            for reference in partitioned:
                if (parameter := reference()) is None:
                    continue
                if is_partitioned_parameter(parameter):
                    set_dtype(parameter, self._view_dtype)
                elif parameter.is_floating_point() and not parameter.is_meta:  # not sharded
                    round_parameter(parameter, self._view_dtype)


def _read(config: Any) -> Mapping[str, Any]:
    settings = dsconfig.read(config).value
    return cast(Mapping[str, Any], settings) if isinstance(settings, Mapping) else {}


def _block(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = settings.get(name)
    return cast(Mapping[str, Any], block) if isinstance(block, Mapping) else {}


def _compute_dtype(settings: Mapping[str, Any]) -> torch.dtype | None:
    """Return the 16-bit compute dtype of a config, None if it has none."""
    bf16 = "bf16" if settings.get("bf16") is not None else "bfloat16"  # its former name
    for name, dtype in ((bf16, torch.bfloat16), ("fp16", torch.float16)):
        if dsconfig.block_values(name, _block(settings, name))["enabled"] is True:
            return dtype
    return None


def _join_process_group() -> None:
    if not dist.is_initialized():
        from dsengine.communication.start import init_distributed

        init_distributed(verbose=False)
