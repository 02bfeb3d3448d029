"""Ranks, groups and degrees of parallelism under DeepSpeed's names.

Groups are those of the engine built last; before it, of all ranks. Collectives are torch's own.
"""

import logging
import os
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, get_process_group_ranks

from dsconfig import Degrees, Mesh, nearest_degree
from dsconfig.features.table import FEATURES
from dsengine.communication.agreement import check_same_call
from dsengine.communication.devices import device_of_rank
from dsengine.loop.planning import request_tensor_degree
from dsengine.parallel.transformers_attention import register
from dsengine.sharding.zero.gathered import GatheredParameters
from dsengine.topology import Topology, all_ranks, current, make_current, world_size


def initialize(ep_size: int = 1, mpu: object = None) -> None:
    """Do nothing for size 1: the config divides experts. Raises ValueError for others."""
    del mpu
    if ep_size != 1:
        raise ValueError(f"groups.initialize(ep_size={ep_size}): {FEATURES['moe_layers'].text}")


def get_data_parallel_group() -> dist.ProcessGroup:
    """Return the ranks with different samples."""
    return current().group("samples")


def get_data_parallel_world_size() -> int:
    return current().size("samples")


def get_data_parallel_rank() -> int:
    return current().rank("samples")


def get_model_parallel_world_size() -> int:
    return current().size("tensor")


def get_model_parallel_rank() -> int:
    return current().rank("tensor")


def _get_sequence_parallel_group() -> dist.ProcessGroup:
    return current().group("sequence")


def _get_sequence_parallel_world_size() -> int:
    return current().size("sequence")


def _get_sequence_parallel_rank() -> int:
    return current().rank("sequence")


def _get_sequence_data_parallel_group() -> dist.ProcessGroup:
    return current().group("gradients")


def _get_sequence_data_parallel_world_size() -> int:
    return current().size("gradients")


def _get_sequence_data_parallel_rank() -> int:
    return current().rank("gradients")


_get_data_parallel_group = get_data_parallel_group
_get_data_parallel_world_size = get_data_parallel_world_size
_get_data_parallel_rank = get_data_parallel_rank
_get_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_model_parallel_rank


def initialize_sequence_parallel(sequence_parallel_size: int) -> None:
    """Divide the ranks into groups of ``sequence_parallel_size`` neighbors. Collective.

    Raises ValueError on every rank if the size is below 2, does not divide the ranks or differs
    between them.
    """
    ranks = world_size()
    if ranks > 1:
        check_same_call(f"initialize_sequence_parallel({sequence_parallel_size})")
    if sequence_parallel_size < 2 or ranks % sequence_parallel_size:
        raise ValueError(
            f"sequence_parallel_size {sequence_parallel_size} does not divide {ranks} ranks: use "
            f"{nearest_degree(sequence_parallel_size, ranks)}"
        )
    topology = current()
    if topology.size("sequence") != sequence_parallel_size:
        degrees = Degrees(sequence=sequence_parallel_size)
        topology = Topology(Mesh.over(ranks, degrees, sharded=True), device_of_rank().type)
    make_current(topology)


class UlyssesSPAttentionHF:
    """Registers sequence-parallel attention with transformers."""

    @classmethod
    def register_with_transformers(
        cls,
        model_name_or_path: Any,
        core_attn_implementation: str | None,
        sequence_parallel_size: int,
        micro_batch_size: int,
        seq_length: int | None = None,
        seq_length_is_variable: bool = True,
        disable_in_eval: bool = False,
        max_length: int | None = None,
    ) -> Any:
        """Divide sequences over ``sequence_parallel_size`` ranks; return the ``mpu`` for
        ``initialize``, or None for size 1.

        ``core_attn_implementation`` None, accelerate's default, is that of the model. Any batch
        size and length is accepted: ``micro_batch_size`` and ``seq_length`` are compared with
        nothing. Raises ValueError if the size does not divide the ranks or the model's heads.
        """
        del micro_batch_size
        if sequence_parallel_size == 1:
            return None
        if max_length is not None:
            logging.getLogger("dsengine").warning("max_length is deprecated: use seq_length")
            seq_length = max_length if seq_length is None else seq_length
        if not seq_length_is_variable and seq_length is None:
            raise ValueError("seq_length_is_variable=False requires seq_length")
        initialize_sequence_parallel(sequence_parallel_size)
        register(
            model_name_or_path,
            core_attn_implementation,
            _get_sequence_parallel_group(),
            disable_in_eval=disable_in_eval,
        )
        return import_module("dsengine.runtime.sequence_parallel.parallel_state_sp")


def is_moe_param(param: Tensor) -> bool:
    """Return whether ``param`` is marked as expert-parallel."""
    return not getattr(param, "allreduce", True)


def has_moe_layers(module: Any) -> tuple[bool, int]:
    """Return (False, 0): ``module`` has no MoE layers of DeepSpeed."""
    del module
    return False, 0


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Any, max_group_size: float | None = None
) -> list[dict[str, Any]]:
    """Return the groups as a list: dsengine has no MoE layers to split them for.

    Raises NotImplementedError for parameters that are marked as expert-parallel.
    """
    del max_group_size
    groups: list[dict[str, Any]] = (
        [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    )
    if any(is_moe_param(param) for group in groups for param in group["params"]):
        raise NotImplementedError(FEATURES["moe_layers"].text)
    return groups


def tp_model_init(
    model: nn.Module, tp_size: int, dtype: Any = None, config: Any = None, **kwargs: Any
) -> nn.Module:
    """Let the next ``initialize`` split layers over ``tp_size`` ranks; return ``model`` unchanged.

    ``dtype`` and ``config`` are those of ``initialize``. Raises ValueError for a process group of
    another size.
    """
    del dtype, config
    group = kwargs.get("tp_group")
    if group is not None and group.size() != tp_size:
        raise ValueError(f"tp_size is {tp_size}, but tp_group has {group.size()} ranks")
    request_tensor_degree(tp_size)
    return model


class GatherReplacedLayerParams(GatheredParameters):
    """Makes the parameters of split layers full on every rank inside the context.

    Changes by rank 0 are kept. Collective. ``module`` is not used.
    """

    def __init__(
        self, params: Iterable[Tensor] | Tensor, module: nn.Module, enabled: bool = True
    ) -> None:
        del module
        super().__init__(params, modifier_rank=0, enabled=enabled)


def get_world_group() -> ProcessGroup:
    """Return the group of all ranks."""
    return all_ranks()


def get_all_ranks_from_group(group: ProcessGroup | None = None) -> list[int]:
    """Return the global ranks of a group's members, in order."""
    return get_process_group_ranks(group)


def has_all_gather_into_tensor() -> bool:
    """Return True, as every supported release of torch has it."""
    return True


def get_local_rank() -> int:
    """Return this process's rank on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))
