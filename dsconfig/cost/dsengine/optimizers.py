"""What dsengine's optimizers hold for a moment in a step.

Kernels are fused where PyTorch has them and the parameters do not choose otherwise; elsewhere a
whole list of tensors is updated at once (``foreach``, torch's default on CUDA, and Lion's own way),
on a CPU one tensor after the other (``dsengine.optimizers.build``).
"""

from collections.abc import Mapping
from typing import Any

from dsconfig.cost.workload import Workload
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, optimizer_type

_CHOOSE_KERNELS = frozenset(("fused", "foreach", "differentiable"))


def temporary_bytes(job: Workload, elements: int, largest: int) -> int:
    """Bytes beside gradients and states in an update of ``elements``, ``largest`` in one tensor."""
    named = job.effective.optimizer
    chosen: Mapping[str, Any] = named.params if named is not None else {}
    found = optimizer_type(named.type if named is not None else "AdamW")
    ours = found.class_in_engine(chosen) if found is not None else None
    if ours is None:
        return (largest if job.on_cpu else elements) * 4 * job.optimizer.temporaries
    kind = OPTIMIZER_CLASSES[ours]
    fused = kind.is_torch_fused_on("cpu" if job.on_cpu else "cuda")
    if chosen.get("fused") or (fused and not _CHOOSE_KERNELS & chosen.keys()):
        return 0
    whole_list = not job.on_cpu if kind.is_torch else kind.is_elementwise
    if not whole_list:
        return largest * 4 * kind.temporaries
    of_lists = kind.temporaries_of_lists
    return elements * 4 * (kind.temporaries if of_lists is None else of_lists)
