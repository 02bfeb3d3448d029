"""Every key that the coverage table lists as honoured has an effect on the engine."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.fsdp import FSDPModule

from dsconfig import Status
from dsconfig.planner.capabilities import live_paths
from dsconfig.planner.coverage.cover import rule_of
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

JOBS = "training.key_jobs"
ABSENT = object()
ON = {"enabled": True}
BF16: dict[str, Any] = {"bf16": ON}
FP16 = {"enabled": True, "initial_scale_power": 8}
Observe = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Case:
    """Setting ``path`` to ``value`` must give a different observation than ``instead``."""

    path: str
    value: Any
    observe: str | Observe
    instead: Any = ABSENT
    base: dict[str, Any] = field(default_factory=lambda: config(2))
    job: str = "probe"
    options: dict[str, Any] = field(default_factory=dict)

    def settings(self, value: Any) -> dict[str, Any]:
        settings = copy.deepcopy(self.base)
        block, parts = settings, self.path.split(".")
        for part in parts[:-1]:
            block = block.setdefault(part, {})
        if value is ABSENT:
            block.pop(parts[-1], None)
        else:
            block[parts[-1]] = value
        return settings


def sixteen_bit_offloaded(block: str, **more: bool) -> dict[str, Any]:
    """Return a config with 16-bit weights and an optimizer on the host."""
    zero = {"offload_optimizer": {"device": "cpu"}}
    return config(2, zero=zero) | {block: {"enabled": True, **more}}


def shows(text: str) -> Observe:
    return lambda seen: text in seen["output"]


def rows_of_profile(seen: dict[str, Any]) -> int:
    return seen["output"].count("%)")


def zero(stage: int, accumulation: int = 1, **more: Any) -> dict[str, Any]:
    return config(stage, accumulation, zero=more)


def offloaded(**more: Any) -> dict[str, Any]:
    return zero(3, sub_group_size=500, offload_optimizer={"device": "cpu", **more})


def on_nvme(folder: str = "{folder}", **more: Any) -> dict[str, Any]:
    block = {"device": "nvme", "nvme_path": folder, **more}
    return zero(2, sub_group_size=500, offload_optimizer=block)


def mapped(**more: Any) -> dict[str, Any]:
    return zero(3, offload_param={"device": "nvme", "nvme_path": "{folder}", **more})


def fp16(**more: Any) -> dict[str, Any]:
    return config(2, fp16={**FP16, **more})


Z = "zero_optimization"
BATCH = [
    Case("train_batch_size", 16, "steps", 8, {**config(2), "gradient_accumulation_steps": None}),
    Case("train_micro_batch_size_per_gpu", 2, "batches", 4),
    Case("gradient_accumulation_steps", 2, "steps", 1),
    Case("managed_gradient_accumulation", False, "steps", base=config(1, 2)),
    Case("dataloader_drop_last", True, "batches"),
    Case("gradient_clipping", 1e-3, "curve", 0.0),
    Case("prescale_gradients", True, "sent", base=config(0, comms_logger=ON)),
    Case("gradient_predivide_factor", 4.0, "sent", base=config(0, comms_logger=ON)),
    Case("gradient_allreduce_op", "sum", "norms"),
    Case("communication_data_type", "fp32", "sent", base=config(0, comms_logger=ON, **BF16)),
    Case("disable_python_gc", True, "garbage"),
]
PRECISION = [
    Case("fp16.enabled", True, "parameter"),
    Case("fp16.auto_cast", True, str, base=fp16(), job="input_dtype"),
    Case("fp16.loss_scale", 64, "scale", base=fp16()),
    Case("fp16.initial_scale_power", 4, "scale", base=fp16()),
    Case(
        "fp16.loss_scale_window", 2, str, base=fp16(), job="scales", options={"overflows": "...."}
    ),
    Case("fp16.hysteresis", 1, str, base=fp16(), job="scales", options={"overflows": "x"}),
    Case(
        "fp16.consecutive_hysteresis",
        True,
        str,
        base=fp16(hysteresis=2),
        job="scales",
        options={"overflows": "x.x"},
    ),
    Case(
        "fp16.min_loss_scale",
        128.0,
        str,
        base=fp16(hysteresis=1),
        job="scales",
        options={"overflows": "xxx"},
    ),
    Case("bf16.enabled", True, "parameter"),
    Case(
        "bf16.check_grad_overflow",
        False,
        "failure",
        base=config(2, **BF16),
        options={"infinite_at": 1},
    ),
    Case("bfloat16.enabled", True, "parameter"),
    Case(
        "bfloat16.check_grad_overflow",
        False,
        "failure",
        base=config(2, bfloat16={"enabled": True}),
        options={"infinite_at": 1},
    ),
    Case("torch_autocast.enabled", True, "outputs"),
    Case(
        "torch_autocast.dtype",
        "float16",
        "outputs",
        base=config(2, torch_autocast={"enabled": True}),
    ),
    Case("data_types.grad_accum_dtype", "fp32", "norms", base=config(2, 2, **BF16)),
    Case("data_types.param_dtype", "fp16", lambda seen: "refused" in seen, base=config(2, **BF16)),
    Case("data_types.buffer_dtype", "bf16", "buffer"),
    Case(
        "data_types.keep_in_fp32_modules",
        ["steps_*"],
        "buffer",
        base=config(2, data_types={"buffer_dtype": "bf16"}, **BF16),
    ),
    *(
        case
        for block in ("bf16", "bfloat16")
        for case in (
            Case(
                f"{block}.bf16_master_weights_and_grads",
                True,
                "masters",
                base=sixteen_bit_offloaded(block),
            ),
            Case(
                f"{block}.bf16_optimizer_states",
                True,
                "states",
                base=sixteen_bit_offloaded(block, bf16_master_weights_and_grads=True),
            ),
        )
    ),
    Case("fp16.fp16_master_weights_and_grads", True, "masters", base=sixteen_bit_offloaded("fp16")),
]
ZERO = [
    Case(f"{Z}.stage", 3, "mechanism", 2),
    Case(f"{Z}.reduce_bucket_size", 500, "units"),
    Case(f"{Z}.compute_grad_norm", False, "norms", base=config(2, gradient_clipping=0.0)),
    Case(f"{Z}.ignore_unused_parameters", False, "failure"),
    Case(f"{Z}.sub_group_size", 500, "tiles", base=zero(2, offload_optimizer={"device": "cpu"})),
    Case(
        f"{Z}.stage3_prefetch_bucket_size",
        0,
        "prefetch",
        10_000,
        zero(3, stage3_max_reuse_distance=0),
    ),
    Case(f"{Z}.stage3_param_persistence_threshold", 100_000, "unsharded", 0, zero(3)),
    Case(
        f"{Z}.stage3_model_persistence_threshold",
        0,
        "unsharded",
        base=zero(3, stage3_param_persistence_threshold=100_000),
    ),
    Case(f"{Z}.stage3_max_live_parameters", 4000, "prefetch", base=zero(3)),
    Case(f"{Z}.stage3_max_reuse_distance", 0, "reshard", base=zero(3)),
    Case(f"{Z}.stage3_gather_16bit_weights_on_model_save", True, "saved", base=zero(3)),
    Case(f"{Z}.stage3_gather_fp16_weights_on_model_save", True, "saved", base=zero(3)),
    Case(f"{Z}.zero_hpz_partition_size", 2, "reshard", base=zero(3, stage3_max_reuse_distance=0)),
    Case(f"{Z}.enable_sanity_checks", True, "watched", base=zero(3)),
    Case(f"{Z}.zero_quantized_weights", True, "collectives", base=zero(3)),
    Case(f"{Z}.zero_quantized_gradients", True, "collectives", base=zero(3)),
    Case(f"{Z}.cpu_offload", True, "binding"),
    Case(f"{Z}.cpu_offload_param", True, "parameters on", base=zero(3)),
]
OPTIMIZER, PARAM = f"{Z}.offload_optimizer", f"{Z}.offload_param"
TIERS = [
    Case(f"{OPTIMIZER}.device", "cpu", "binding", "none"),
    Case(
        f"{OPTIMIZER}.nvme_path",
        "{folder}/other",
        lambda seen: "other" in seen["folder"],
        "{folder}",
        on_nvme(),
    ),
    Case(f"{OPTIMIZER}.pin_memory", True, str, False, offloaded(), "pinned", {"what": "optimizer"}),
    Case(f"{OPTIMIZER}.buffer_count", 12, "buffers", 4, on_nvme()),
    Case(f"{OPTIMIZER}.ratio", 0.5, "tiles", base=offloaded()),
    Case(f"{PARAM}.device", "cpu", "parameters on", "none", zero(3)),
    Case(
        f"{PARAM}.nvme_path",
        "{folder}",
        str,
        "{folder}/other",
        mapped(),
        "parameter_files",
        {"folder": "{folder}"},
    ),
    Case(
        f"{PARAM}.pin_memory",
        True,
        str,
        False,
        zero(3, offload_param={"device": "cpu"}),
        "pinned",
        {"what": "parameters"},
    ),
    Case(f"{PARAM}.max_in_cpu", 100_000, str, 0, mapped(), "mapped_bytes"),
    Case("aio.block_size", 8192, "blocks", base=on_nvme()),
    Case("aio.intra_op_parallelism", 2, "in flight", base=on_nvme()),
    Case("aio.queue_depth", 2, "in flight", base=on_nvme()),
]
STEPS = config(1, steps_per_print=2)
FLOPS = config(1, flops_profiler=ON)
LOGGED = config(1, comms_logger=ON, steps_per_print=4)
SOME = config(1, comms_logger={"enabled": True, "prof_all": False}, steps_per_print=4)
REPORTS = [
    Case("steps_per_print", 2, shows("step=2")),
    Case("wall_clock_breakdown", True, shows("time (ms) |"), base=STEPS),
    Case("memory_breakdown", True, shows("memory after forward")),
    Case("dump_state", True, shows("plan of this run")),
    Case("log_level", "error", "level"),
    Case("flops_profiler.enabled", True, shows("flops profile")),
    Case("flops_profiler.profile_step", 99, shows("flops profile"), base=FLOPS),
    Case("flops_profiler.module_depth", 1, shows("blocks.0.up"), base=FLOPS),
    Case("flops_profiler.top_modules", 2, rows_of_profile, base=FLOPS),
    Case("flops_profiler.detailed", False, shows("blocks"), base=FLOPS),
    Case(
        "flops_profiler.recompute_fwd_factor",
        1.0,
        lambda seen: seen["output"].partition("forward and backward")[2].split(";")[0],
        base=FLOPS,
    ),
    Case(
        "flops_profiler.output_file",
        "{folder}/flops.txt",
        str,
        base=FLOPS,
        job="files",
        options={"folder": "{folder}"},
    ),
    Case("comms_logger.enabled", True, shows("all_gather"), base=config(1, steps_per_print=4)),
    Case("comms_logger.prof_all", False, shows("all_reduce"), base=LOGGED),
    Case("comms_logger.prof_ops", ["all_reduce"], shows("all_reduce"), base=SOME),
    Case("comms_logger.verbose", True, shows("comm op:"), base=LOGGED),
    Case("timers.throughput.enabled", False, shows("samples/s"), base=config(1, steps_per_print=4)),
    Case("timers.throughput.synchronized", False, str, job="synchronizations_for_rate"),
    Case(
        "checkpoint.tag_validation",
        "fail",
        lambda output: "CheckpointError" in output,
        job="tags",
        options={"folder": "{folder}"},
    ),
    Case(
        "checkpoint.writer.decoupled",
        True,
        str,
        False,
        job="is_written_later",
        options={"folder": "{folder}"},
    ),
] + [
    Case(
        f"{monitor}.{key}",
        value,
        str,
        instead,
        config(1) | {monitor: {"enabled": True, "output_path": "{folder}"}},
        "files",
        {"folder": "{folder}"},
    )
    for monitor in ("tensorboard", "csv_monitor")
    for key, value, instead in (
        ("enabled", True, False),
        ("output_path", "{folder}/here", "{folder}"),
        ("job_name", "mine", ABSENT),
    )
]
BLOCKS = config(0, activation_checkpointing={"partition_activations": False})
PARAMS = {"params": {"lr": 0.1}}
OTHERS = [
    Case("zero_optimization.leaf_module.classes", ["Block"], "unused"),
    Case("zero_optimization.leaf_module.names", ["blocks.1"], "unused"),
    Case("zero_optimization.leaf_module.name_suffixes", ["cks.0"], "unused"),
    Case(
        "optimizer.type", "SGD", "optimizer", "AdamW", config(2, optimizer={"params": {"lr": 0.1}})
    ),
    Case(
        "scheduler.type",
        "LinearLR",
        "schedule",
        "ConstantLR",
        config(2, scheduler={"params": {"total_iters": 4}}),
    ),
    Case("activation_checkpointing.cpu_checkpointing", True, str, False, BLOCKS, "checkpointed"),
    Case(
        "activation_checkpointing.synchronize_checkpoint_boundary",
        True,
        str,
        False,
        BLOCKS,
        "checkpointed",
    ),
]
CASES = [*BATCH, *PRECISION, *ZERO, *TIERS, *REPORTS, *OTHERS]
ELSEWHERE = (
    "optimizer.params.",
    "scheduler.params.",
    "wandb.",
    "comet.",
    "sequence_parallel_size",
    "seq_parallel_communication_data_type",
    "tensor_parallel.",
    "expert_parallel.",
    "pipeline.",
    "zero_optimization.zero_quantized_nontrainable_weights",
)
"""Covered by ``test_arguments.py`` and ``engine_storage/test_monitors.py`` without ranks, and by
``test_sequence.py``, ``test_tensor_input.py``, ``test_experts_input.py``, ``test_pipeline.py`` and
``test_zeropp.py``."""


def honoured() -> set[str]:
    """Return the keys that a case of their rule honours."""
    return {
        path
        for path in live_paths()
        if any(case.status is Status.HONOURED for case in rule_of(path) or ())
    }


def test_every_honoured_key_is_covered() -> None:
    here = {path for path in honoured() if not path.startswith(ELSEWHERE)}
    assert {case.path for case in CASES} == here


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """Results by request; many cases share a baseline."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_honoured_key_has_an_effect(
    ranks: Ranks, known: dict[str, Any], case: Case, tmp_path: Path
) -> None:
    if "leaf_module" in case.path and not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        pytest.skip("torch before 2.13")

    def seen(value: Any, folder: Path) -> Any:
        folder.mkdir()
        request = json.dumps([case.job, case.settings(value), case.options])
        request = request.replace("{folder}", str(folder))
        if request not in known:
            job, settings, options = json.loads(request)
            known[request] = ranks.run(f"{JOBS}:{job}", settings=settings, **options)[0]
        look = case.observe if callable(case.observe) else lambda answer: answer[case.observe]
        return str(look(known[request])).replace(str(folder), "")

    assert seen(case.value, tmp_path / "with") != seen(case.instead, tmp_path / "without")
