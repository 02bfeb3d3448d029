"""Muon's momentum in DeepSpeed, in the dtype of the gradients that it is mixed with.

Read from ``_muon_momentum_buffer`` (stage_1_and_2.py) and ``_create_momentum_buffer`` (stage3.py)
of DeepSpeed 0.19.8, and seen in runs of it: 16 bits in bf16, on the device and, at stage 3, on
the host; fp32 where stages 1 and 2 offload.
"""

from dataclasses import replace

from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Tier


def with_muon_momentum(job: Workload) -> Workload:
    """The run with what Muon's momentum takes; any other run as it is."""
    effective = job.effective
    zero, named = effective.zero, effective.optimizer
    if named is None or not job.optimizer.leaves_to_adam:
        return job
    if zero.stage < 3 and zero.optimizer_tier is not Tier.DEVICE:
        return job
    of_adam = job.optimizer.states - 1  # one momentum for every element, a second for Adam's
    width = effective.numerics.communication_dtype.bytes
    cost = replace(job.optimizer, states=2 * of_adam, other_bytes=width * (1 - of_adam))
    return replace(job, optimizer=cost)
