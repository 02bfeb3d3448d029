"""What dsengine's optimizers hold for a moment in a step, and when they make their states.

Kernels are fused where PyTorch has them and the parameters do not choose otherwise; elsewhere a
whole list of tensors is updated at once (``foreach``, torch's default on CUDA, and Lion's own way),
on a CPU one tensor after the other (``dsengine.optimizers.build``).
"""

from dsconfig.cost.workload import Workload

_ADAM = frozenset(("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam"))
_FUSED = _ADAM | {"sgd", "adagrad", "deepspeedcpuadagrad"}
_LION = frozenset(("lion", "fusedlion", "deepspeedcpulion"))
_CHOOSE_KERNELS = frozenset(("fused", "foreach", "differentiable"))
_LION_LISTS = 1  # the interpolated momentum, whose sign is the step
_MUON_TENSORS = 2  # fp32 update of one matrix; its 16-bit copy and that of one iteration


def temporary_bytes(job: Workload, elements: int, largest: int) -> int:
    """Bytes beside gradients and states in an update of ``elements``, ``largest`` in one tensor."""
    named = job.effective.optimizer
    kind = named.type.lower() if named is not None else "adamw"
    if kind in _LION:
        return elements * 4 * _LION_LISTS
    if kind == "muon":
        return largest * 4 * _MUON_TENSORS
    if kind in _FUSED and (named is None or not _CHOOSE_KERNELS & named.params.keys()):
        return 0
    return (largest if job.on_cpu else elements) * 4 * job.optimizer.temporaries
