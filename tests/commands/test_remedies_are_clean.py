"""A remedy adds no finding to the file, and names only what it changes."""

from typing import Any

import dsconfig
from dsconfig.cost.remedies import Change, cheapest_changes
from dsconfig.facts import Facts
from dsconfig.project.changes import changed
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.source import Document, read
from dsconfig.source.pointer import lookup
from narrowing import not_none
from sweeps import sweep

OPEN = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
FIXED = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
BATCHES = {"transformers": OPEN, "accelerate": OPEN, "deepspeed": FIXED, "dsengine": FIXED}
BLOCKS: dict[str, dict[str, Any]] = {
    "stage 0": {"stage": 0},
    "stage 1": {"stage": 1, "allgather_bucket_size": 1e8},
    "stage 2": {"stage": 2, "allgather_bucket_size": 5e8, "round_robin_gradients": True},
    "stage 3": {"stage": 3},
    "stage 2 with offload": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "stage 3 with offload": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    },
}
WORLDS: tuple[dict[str, Any], ...] = (
    {"model": "llama-3-70b", "gpus": 8, "device": "h100", "seq_len": 8192},
    {"model": "llama-3-8b", "gpus": 2, "device": "rtx-4090", "seq_len": 8192, "nvme": "/data"},
    {"model": "llama-3-8b", "gpus": 8, "device": "rtx-4090", "seq_len": 4096},
)
NOT_ABOUT_THE_FILE = {"DSC502", "DSC613"}
"""The host memory of a change that does not fit, and an optimizer that the script passes."""


def changes(
    name: str, block: dict[str, Any], world: dict[str, Any]
) -> tuple[Runtime, Document, Facts, tuple[Change, ...]]:
    runtime = runtime_of(name)
    document = read({**BATCHES[name], "bf16": {"enabled": True}, "zero_optimization": block})
    facts = dsconfig.gather(**world, micro_batch=2, accumulation=1, precision="bf16")
    effective = not_none(dsconfig.resolve(document, facts, runtime=runtime).effective)
    found = cheapest_changes(effective, facts, runtime=runtime, count=50)
    return runtime, document, facts, found


@sweep(2, name=[*BATCHES], block=[*BLOCKS], world=[*range(len(WORLDS))])
def test_remedy_adds_no_finding_and_names_only_what_changes(
    name: str, block: str, world: int
) -> None:
    runtime, document, facts, found = changes(name, BLOCKS[block], WORLDS[world])
    report = dsconfig.validate(document, facts, runtime=runtime)
    known = {(finding.code, finding.pointer) for finding in report.diagnostics}
    assert found
    for change in found:
        after = changed(change, runtime, document)
        for finding in dsconfig.validate(after, facts, runtime=runtime).diagnostics:
            is_known = (finding.code, finding.pointer) in known
            assert is_known or finding.code in NOT_ABOUT_THE_FILE, (change.what, finding)
    stage = lookup(document.value, "/zero_optimization/stage")
    assert not [change.what for change in found if f"stage {stage}" in change.what]
    if "offload" in block:
        moved = [each.what for each in found if "optimizer" in each.what and "CPU" in each.what]
        assert not moved
