"""Offloaded states and the host memory of a node."""

import pytest

import dsconfig
from dsconfig.facts import gather
from dsconfig.report import Diagnostic, Effect

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}


def host_findings(nodes: int | None, memory: int, ranks: int | None = 8) -> list[Diagnostic]:
    facts = gather(gpus=ranks, nodes=nodes, model="llama-2-13b", host_memory=memory)
    report = dsconfig.validate(CONFIG, facts)
    return [found for found in report.diagnostics if found.code == "DSC502"]


def stops(nodes: int | None, memory: int, ranks: int | None = 8) -> bool:
    return any(found.effect is Effect.REFUSED for found in host_findings(nodes, memory, ranks))


@pytest.mark.parametrize(("nodes", "share"), [(None, 1), (1, 1), (2, 2), (4, 4)])
def test_offloaded_states_are_divided_by_nodes(nodes: int | None, share: int) -> None:
    """12 bytes of Adam states and master weight and 4 bytes of gradient, exactly."""
    model = gather(model="llama-2-13b").model
    assert model is not None
    needed = 16 * model.trainable // share
    assert not stops(nodes, needed) and stops(nodes, needed - 1)
    [found] = host_findings(nodes, needed - 1)
    assert f"{needed / 2**30:.0f} GiB of host memory per node" in found.message


def test_states_using_memory_of_the_system_are_a_warning() -> None:
    """13e9 parameters require 194 GiB; the system reserves 11 of 200 GiB."""
    [found] = host_findings(1, 200 * 2**30)
    assert found.effect is Effect.COSTLY and "which has 189 GiB usable of 200 GiB" in found.message
    assert host_findings(1, 220 * 2**30) == []


@pytest.mark.parametrize(("stage", "reported"), [(2, False), (3, True)])
def test_nvme_buffer_is_checked_at_stage_3(stage: int, reported: bool) -> None:
    block = {"device": "nvme", "nvme_path": "/local_nvme", "buffer_size": 1000}
    zero = {"stage": stage, "offload_param": block}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    report = dsconfig.validate(config, gather(gpus=8, model="llama-2-7b"))
    assert ("DSC503" in {found.code for found in report.diagnostics}) is reported


def test_one_node_is_assumed() -> None:
    model = gather(model="llama-2-13b").model
    assert model is not None
    assert not stops(None, 16 * model.trainable, ranks=None)
    assert stops(None, 16 * model.trainable - 1, ranks=None)
