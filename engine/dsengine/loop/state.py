"""State and queries of an engine: settings, counters, ranks, components.

The names are DeepSpeed's. ``EngineState`` is the base of the engine's classes: ``offload_states``
adds offloading, ``saving`` files, ``exporting`` weights, ``generating`` generation, and ``engine``
training.
"""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import Plan
from dsengine.loop.counters import Accumulation, Counters
from dsengine.loop.deepspeed_attributes import DeepSpeedAttributes
from dsengine.optimizers.binding import is_torch_or_own
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.optimizers.precision import policy
from dsengine.optimizers.schedules.base import assign_lr
from dsengine.sharding import Sharding
from dsengine.tiers import bind
from dsengine.topology import Topology, rank
from dsengine.torch_private.modules import MoveAwareModule


class EngineState(DeepSpeedAttributes, MoveAwareModule):
    """An engine's components and its read-only queries."""

    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        sharding: Sharding,
        scaler: LossScaler,
        device: torch.device,
        optimizer: Optimizer | None,
        lr_scheduler: Any,
    ) -> None:
        super().__init__()
        self.module = sharding.module
        self.plan = plan
        self.topology = topology
        self.device = device
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.training_dataloader: Any = None
        self.counters = Counters()
        self.loss_scaler = scaler
        self.sharding = sharding
        self._effective = effective = plan.effective
        self.accumulation = Accumulation(
            plan.batch.accumulation, effective.gradients.managed_accumulation, self.counters
        )
        self._binding = bind(optimizer, sharding.masters, effective, sharding.host_masters)
        sharding.offloaded_gradients = self._binding.offloaded_gradients

    # Counters

    @property
    def global_steps(self) -> int:
        return self.counters.global_steps

    @property
    def global_samples(self) -> int:
        return self.counters.global_samples

    @property
    def micro_steps(self) -> int:
        return self.counters.micro_steps

    @property
    def skipped_steps(self) -> int:
        return self.counters.skipped_steps

    # Optimizer and schedule

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self._groups()]

    def set_lr(self, rate: float) -> None:
        for group in self._groups():
            assign_lr(group, rate)

    def get_mom(self) -> list[Any]:
        return [group.get("betas", group.get("momentum")) for group in self._groups()]

    def get_type(self) -> list[Any]:
        return [group.get("type") for group in self._groups()]

    def _groups(self) -> list[dict[str, Any]]:
        optimizer = self.optimizer
        return optimizer.param_groups if optimizer is not None else []

    @property
    def basic_optimizer(self) -> torch.optim.Optimizer | None:
        return self.optimizer

    @property
    def sparse_tensor_module_names(self) -> set[str]:
        """Names of weights with sparse gradients: embeddings, with ``sparse_gradients``."""
        if not self._effective.gradients.sparse:
            return set()
        tables = (nn.Embedding, nn.EmbeddingBag)
        named = self.module.named_modules()
        return {f"{name}.weight" for name, module in named if isinstance(module, tables)}

    def optimizer_name(self) -> str | None:
        """Return the config's name for the optimizer, or the class of the one passed in."""
        named, optimizer = self._effective.optimizer, self.optimizer
        if optimizer is None:
            return None
        return named.type.lower() if named is not None else type(optimizer).__name__

    def optimizer_params(self) -> Mapping[str, Any] | None:
        named = self._effective.optimizer
        return None if named is None else named.params

    def scheduler_name(self) -> str | None:
        named = self._effective.scheduler
        return None if named is None else named.type

    def scheduler_params(self) -> Mapping[str, Any] | None:
        named = self._effective.scheduler
        return None if named is None else named.params

    # Batch

    def gradient_accumulation_steps(self) -> int:
        return self.accumulation.steps

    def managed_gradient_accumulation(self) -> bool:
        """Whether windows end by counting micro batches; otherwise at each ``step``."""
        return self._effective.gradients.managed_accumulation

    def train_batch_size(self) -> int:
        return self.plan.batch.global_batch

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.plan.batch.micro_batch

    def get_batch_info(self) -> tuple[int, int, int]:
        """Return (global batch, micro batch, accumulation steps)."""
        return (
            self.train_batch_size(),
            self.train_micro_batch_size_per_gpu(),
            self.gradient_accumulation_steps(),
        )

    # Precision

    def fp16_enabled(self) -> bool:
        return self._effective.numerics.precision == "fp16"

    def bfloat16_enabled(self) -> bool:
        return self._effective.numerics.precision == "bf16"

    def torch_autocast_enabled(self) -> bool:
        return self._effective.numerics.autocast is not None

    @property
    def loss_scale(self) -> float:
        return self.loss_scaler.scale

    @property
    def cur_scale(self) -> float:
        return self.loss_scaler.scale

    def gradient_clipping(self) -> float:
        return self._effective.gradients.clipping

    # ZeRO

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def zero_optimization_stage(self) -> int:
        return self._effective.zero.stage

    def zero_optimization_partition_gradients(self) -> bool:
        return self.zero_optimization_stage() >= 2

    def zero_optimization_partition_weights(self) -> bool:
        return self.zero_optimization_stage() >= 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return self._effective.zero.gather_16bit_weights_on_model_save

    def zero_offload_optimizer(self) -> Any:
        return self._effective.zero.offload_optimizer

    def zero_offload_param(self) -> Any:
        return self._effective.zero.offload_param

    # Reports

    def steps_per_print(self) -> int | None:
        return self._effective.reporting.steps_per_print

    def wall_clock_breakdown(self) -> bool:
        return self._effective.reporting.wall_clock_breakdown

    def memory_breakdown(self) -> bool:
        return self._effective.reporting.memory_breakdown

    def dump_state(self) -> bool:
        return self._effective.reporting.dump_state

    def log_level(self) -> str | None:
        return self._effective.reporting.log_level

    # Ranks

    @property
    def global_rank(self) -> int:
        return rank()

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    @property
    def world_size(self) -> int:
        return self.plan.mesh.world_size

    @property
    def dp_world_size(self) -> int:
        return self.topology.size("samples")

    @property
    def data_parallel_group(self) -> Any:
        return self.topology.group("samples")

    @property
    def seq_data_parallel_group(self) -> Any:
        return self.topology.group("gradients")

    @property
    def mp_world_size(self) -> int:
        return self.topology.size("tensor")

    @property
    def config(self) -> dict[str, Any]:
        """The config as a dict in DeepSpeed's format, without "auto"."""
        return dict(self._effective.config)

    # Optimizer parameters

    def optimizer_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizer holds between steps."""
        return list(self._binding.shards.values())

    def optimizer_parameter(self, name: str) -> Tensor:
        """Return what the optimizer steps for master ``name``: the master or this rank's shard."""
        return self._binding.shards.get(name, self.sharding.masters[name])

    def states_materialized(self) -> AbstractContextManager[None]:
        """Return a context in which optimizer parameters and states have their values in memory."""
        return self._binding.materialized()

    def mark_in_sync(self, name: str) -> None:
        """Record that master ``name`` and its optimizer parameter were given the same value."""
        self._binding.mark_in_sync(name)

    def state_load_target(self, name: str, entry: str, shape: torch.Size) -> Tensor | None:
        """Return the tensor to load a state of ``shape`` into, inside ``optimizer_on_shards``."""
        return self._binding.load_target(name, entry, shape)

    def state_dtype(self, weight: Tensor, saved: torch.dtype) -> torch.dtype:
        """Return the dtype in which to load a state of ``weight``, saved as ``saved``.

        Classes of other packages may have states in any dtype: those are loaded as saved.
        """
        is_built_in = is_torch_or_own(type(self.optimizer))
        return policy(self._effective).state_dtype(weight, saved) if is_built_in else saved

    @property
    def states_in_files(self) -> bool:
        """Whether optimizer states are stored in files between steps."""
        return self._effective.zero.optimizer_tier == "nvme"

    def optimizer_on_shards(self) -> AbstractContextManager[None]:
        """Return a context in which the optimizer holds the parameters that checkpoints save."""
        return self._binding.as_sharded()

    def checkpointed_masters(self) -> Mapping[str, Tensor]:
        """Return the masters as checkpoints save them, inside ``optimizer_on_shards``."""
        return self._binding.checkpoint_masters()
