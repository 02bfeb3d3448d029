"""Findings of resolver and planner for dsengine, and missing facts; these checks report nothing."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime


def _resolved_here(runtime: Runtime) -> bool:
    return not runtime.fills_auto


@rule("DSC150", Effect.REFUSED)
def missing_fact(config: Context) -> Iterator[Finding]:
    """A value depends on a fact that is not specified

    A value is "auto" and depends on the number of ranks, the model, the GPU or the sequence
    length. dsconfig does not guess it, so the config is not resolved. `dsconfig validate` does not
    report it: what depends on the fact is not checked.

    with: command="resolve", runtime="dsengine"
    bad: {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    with: command="resolve", runtime="dsengine", gpus=8
    good: {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 1}
    """
    yield from ()


@rule("DSC152", Effect.REFUSED, applies_to=_resolved_here)
def no_rule_for_auto(config: Context) -> Iterator[Finding]:
    """Value "auto" that no program replaces

    The key has neither a rule nor a default.

    with: runtime="dsengine", gpus=8
    bad: {"train_batch_size": 8, "data_parallel_size": "auto"}
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC153", Effect.NOTE, applies_to=_resolved_here)
def host_memory_unknown(config: Context) -> Iterator[Finding]:
    """Offloading to host memory of unknown size

    Optimizer states or parameters are offloaded to host memory, but its size per node is not
    specified, so it was not checked. A job that exceeds host memory is killed by the operating
    system, usually without a message.

    with: runtime="dsengine", params="1e9", gpus=2, device="a100-40gb", seq_len=2048
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto",
        "offload_optimizer": {"device": "cpu"}}}
    with: runtime="dsengine", params="1e9", gpus=2, device="a100-40gb", seq_len=2048,
        host_memory="512GiB"
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto",
        "offload_optimizer": {"device": "cpu"}}}
    """
    yield from ()


@rule("DSC154", Effect.REFUSED, applies_to=_resolved_here)
def nothing_fits(config: Context) -> Iterator[Finding]:
    """No stage and offload device fits

    None that the config leaves open fits a micro batch of 1, or is compatible with the values that
    the config sets. The message names the closest choice and how much GPU, host or NVMe memory it
    exceeds.

    with: runtime="dsengine", params="400e9", gpus=1, device="v100-16gb", seq_len=2048
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto"}}
    with: runtime="dsengine", params="1e9", gpus=2, device="a100-40gb", seq_len=2048
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto"}}
    """
    yield from ()


@rule("DSC155", Effect.NOTE, applies_to=_resolved_here)
def tight_fit(config: Context) -> Iterator[Finding]:
    """Less than 5% of GPU memory stays free

    No micro batch leaves more beside what the allocator caches; the error of the estimate is about
    as large. The largest one that needs no more memory than the smallest is used. The run may go
    out of memory later, when the allocator's memory is fragmented. Run some steps; if it runs out
    of memory, use more GPUs, a higher stage or offloading.

    with: runtime="dsengine", model="gpt2-xl", gpus=2, device_memory="44GB", seq_len=1024
    bad: {"train_batch_size": 256, "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto", "bf16": {"enabled": true}}
    with: runtime="dsengine", model="gpt2-xl", gpus=2, device_memory="48GB", seq_len=1024
    good: {"train_batch_size": 256, "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto", "bf16": {"enabled": true}}
    """
    yield from ()


@rule("DSC251", Effect.REFUSED, applies_to=_resolved_here)
def batch_contradiction(config: Context) -> Iterator[Finding]:
    """Batch values that the ranks cannot share

    train_batch_size = micro batch x accumulation x data-parallel ranks does not hold, or cannot
    hold with the given values. Data-parallel ranks are the GPUs divided by the tensor, sequence and
    pipeline degrees.

    with: runtime="dsengine", gpus=2, micro_batch=4
    bad: {"train_batch_size": 10, "train_micro_batch_size_per_gpu": "auto"}
    good: {"train_batch_size": 16, "train_micro_batch_size_per_gpu": "auto"}
    """
    yield from ()


@rule("DSC252", Effect.REFUSED, applies_to=_resolved_here)
def micro_batch_does_not_fit(config: Context) -> Iterator[Finding]:
    """No micro batch fits

    Even the smallest that divides the global batch exceeds GPU memory with the stage and offload
    devices that the config sets.

    with: runtime="dsengine", model="llama-2-70b", gpus=8, device="a100-80gb", seq_len=2048
    bad: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto", "zero_optimization":
        {"stage": 1}}
    with: runtime="dsengine", model="llama-2-7b", gpus=8, device="a100-80gb", seq_len=2048
    good: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto", "zero_optimization":
        {"stage": 3}}
    """
    yield from ()


@rule("DSC350", Effect.NOTE, applies_to=_resolved_here)
def bf16_model_in_fp16(config: Context) -> Iterator[Finding]:
    """A model trained in bf16 runs in fp16

    The GPU does not support bf16, and the largest number of fp16 is 65504. Activations may
    overflow, which causes skipped steps while the loss scale falls to its minimum.

    with: runtime="dsengine", model="llama-2-7b", gpus=8, device="v100-32gb"
    bad: {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": "auto"}}
    with: runtime="dsengine", model="llama-2-7b", gpus=8, device="a100-80gb"
    good: {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": "auto"}}
    """
    yield from ()


@rule("DSC762", Effect.REFUSED, applies_to=_resolved_here, stops="engine")
def not_in_this_engine(config: Context) -> Iterator[Finding]:
    """A feature that dsengine does not implement

    dsengine refuses to plan with ZenFlow, DataStates, GPUDirect Storage and others, by the same
    table as `dsconfig plan`. Reported if there is no other error.

    with: runtime="dsengine", gpus=8
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "zenflow": {}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    yield from ()
