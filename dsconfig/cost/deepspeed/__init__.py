"""Replay of DeepSpeed's allocations: one module per kind of ZeRO optimizer."""

from dsconfig.cost.deepspeed import stage0, stage3, stage12
from dsconfig.cost.timeline import Trace
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Precision, Tier


def simulate(job: Workload) -> Trace:
    """Replay one rank of a DeepSpeed run, with the optimizer wrapper its engine chooses."""
    zero, numerics = job.effective.zero, job.effective.numerics
    if zero.stage == 0:
        return stage0.simulate(job)
    if zero.stage == 3:
        return stage3.simulate(job)
    bf16_with_fp32_sums = (
        numerics.precision is Precision.BF16 and numerics.grad_accum_dtype is Precision.FP32
    )
    if zero.stage == 1 and bf16_with_fp32_sums and zero.optimizer_tier is Tier.DEVICE:
        return stage12.simulate_fp32_sums(job)
    return stage12.simulate(job)
