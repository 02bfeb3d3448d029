"""Search a clone of DeepSpeed for the lines of each known fault, tag by tag.

    PYTHONPATH=tests python -m checks.record_known_faults CLONE

Prints codes whose range of releases differs from the rule's; exits with 1 if there are any.
"""

import re
import subprocess
import sys
from collections.abc import Mapping

from dsconfig.checks.fault import RANGES
from dsconfig.checks.registry import rules
from dsconfig.schema.version import Version

STAGE_12, STAGE_3 = "runtime/zero/stage_1_and_2.py", "runtime/zero/stage3.py"
ENGINE, PARTITION = "runtime/engine.py", "runtime/zero/partition_parameters.py"
LINES: Mapping[str, tuple[str, str]] = {
    "DSC830": (
        STAGE_12,
        r"if not i in self\.averaged_gradients or self\.averaged_gradients\[i\] is None:\s+"
        r"self\.all_grad_tensors\[i\] =",
    ),
    "DSC831": (
        STAGE_12,
        r"will send 32bit directly\s+if not self\.is_gradient_accumulation_boundary:\s+copy_grad",
    ),
    "DSC832": (STAGE_12, r"accumulate_gradients\(\)\s+else:\s+copy_gradients_to_cpu"),
    "DSC833": (
        STAGE_12,
        r"stream\.wait_stream\(get_accelerator\(\)\.current_stream\(\)\)\n"
        r"(?!\s+get_accelerator\(\)\.current_stream\(\)\.wait_stream)",
    ),
    "DSC834": (
        STAGE_12,
        r"def allreduce_and_copy_with_multiple_ranks(?:(?!record_stream).)*"
        r"def allreduce_and_scatter",
    ),
    "DSC835": (
        STAGE_3,
        r"def __add_grad_to_ipg_bucket.{0,260}partition_stream\.wait_stream\("
        r"get_accelerator\(\)\.default_stream",
    ),
    "DSC836": (
        ENGINE,
        r"def _backward_epilogue(?:(?!BF16_Optimizer).)*self\.allreduce_gradients\(\)"
        r"(?:(?!def ).)*self\.optimizer\.backward_epilogue\(\)",
    ),
    "DSC838": (
        ENGINE,
        r"BF16_Optimizer.*else:\s+self\.buffered_allreduce_fallback\(elements_per_buffer=bucket_siz",
    ),
    "DSC839": ("runtime/utils.py", r"clip_coef = torch\.max\(tmp_tensor, clip_coef\)"),
    "DSC840": (STAGE_12, r"inf_or_nan \* err \+ inf_or_nan\.logical_not\(\) \* total_norm"),
    "DSC841": (
        STAGE_3,
        r"elements_in_ipg_bucket \+ param\.grad\.numel\(\) < self\.reduce_bucket_size",
    ),
    "DSC842": ("runtime/lr_schedules.py", r"first_stair_count(?!.*stair_position)"),
    "DSC844": (
        ENGINE,
        r"\A(?!.*_EngineBackwardGraphTracker).*def _backward_prologue_per_tensor",
    ),
    "DSC849": (
        "runtime/zero/muon/muon_optimizer.py",
        r"for p in group\[\"params\"\]:\s+p\.mul_\([^\n]+\n\s+p\.add_\(p\.grad\.reshape",
    ),
    "DSC850": (STAGE_12, r"\A(?!.*_apply_muon_updates_cpu_offload).*import muon_update"),
    "DSC851": (STAGE_12, r"\A(?!.*muon_copy_ranks).*import muon_update"),
    "DSC852": ("__init__.py", r"if p\.ndim >= 2:\n\s+setattr\(p, \"use_muon\", True"),
    "DSC854": (PARTITION, r"start_param \+= param\.ds_numel\n"),
    "DSC855": (PARTITION, r"_partition_param_sec\(param\)\n"),
    "DSC856": (
        PARTITION,
        r"sec_numel\)\.copy_\(one_dim_param\.narrow\(0, secondary_start,\s+sec_numel",
    ),
    "DSC857": (
        PARTITION,
        r"dequantize\(param\.ds_tensor\.data, param\.ds_tensor\.ds_quant_scale\)",
    ),
    "DSC858": (
        "runtime/superoffload/superoffload_stage3.py",
        r"concatenated_buffer = torch\.cat\(device_buffers",
    ),
    "DSC860": (
        "runtime/fp16/fused_optimizer.py",
        r"p\.grad = None\n\n {12}if self\.timers:\n\s+[^\n]+\n {12}return self\.overflow",
    ),
    "DSC861": (STAGE_12, r"extra_large_param_to_reduce\[param\.dtype\]"),
    "DSC862": ("elasticity/elasticity.py", r"if base >= max_acceptable_batch_size:\n\s+candidate"),
    "DSC837": (
        ENGINE,
        r"else DDP_BFLOAT16.*if self\.zero_optimization\(\) and "
        r"hasattr\(self\.optimizer, \"zero_grad\"\)",
    ),
    "DSC845": (
        ENGINE,
        r"if isinstance\(self\.optimizer, ZeROOptimizer\):\s+loss = self\.optimizer\.scale_if_loss",
    ),
    "DSC843": ("runtime/lr_schedules.py", r"for group in self\.optimizer\.param_groups\]\[0\]"),
}
"""File and pattern of the faulty lines by code; other faults cannot be found by a pattern."""
OLDEST = Version(0, 3, 0)


def releases(clone: str) -> list[Version]:
    """Return the released versions of a clone, oldest first."""
    tags = _git(clone, "tag").split()
    named = (Version.parse(tag) for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag))
    return sorted(version for version in named if version >= OLDEST)


def has(clone: str, version: Version, file: str, lines: str) -> bool:
    text = _git(clone, "show", f"v{version}:deepspeed/{file}")
    return re.search(lines, text, re.DOTALL) is not None


def _git(clone: str, *arguments: str) -> str:
    command = ["git", "-C", clone, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def differing(clone: str) -> list[str]:
    """Return a line for each code whose range in the clone differs from the rule's."""
    rules()  # imports the modules that fill RANGES
    known, found = releases(clone), []
    for code, (file, lines) in LINES.items():
        faulty = [version for version in known if has(clone, version, file, lines)]
        span = (faulty[0], faulty[-1]) if faulty else None
        if span != RANGES[code]:
            found.append(f"{code}: rule {RANGES[code]}, clone {span}")
    return found


if __name__ == "__main__":
    differences = differing(sys.argv[1])
    print("\n".join(differences) or f"{len(LINES)} ranges agree")
    sys.exit(bool(differences))
