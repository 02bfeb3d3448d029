"""Insufficient host memory for offloaded states is reported before any is allocated."""

import mmap
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dsconfig
from dsconfig.facts.gathering import gather
from dsconfig.tiles import STAGING_BYTES
from dsengine.loop.planning import refuse_insufficient_memory
from dsengine.tiers import memory

GIB = 2**30
KIBI = 1024


FACTS = gather(gpus=2, model="gpt2")


def planned(stage: int, device: str) -> dsconfig.Plan:
    facts = FACTS
    offload = {"device": device, **({"nvme_path": "/local"} if device == "nvme" else {})}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": stage,
            "offload_optimizer": offload,
            **({"sub_group_size": 1_000_000} if device == "nvme" else {}),
        },
    }
    return dsconfig.plan(dsconfig.resolve(config, facts), facts)


STATES = 16 * 124_439_808
"""gpt2 with AdamW: fp32 masters, gradients and two moments, for all ranks of the node."""


@pytest.mark.parametrize(
    ("stage", "device", "advice"),
    [
        (
            3,
            "cpu",
            r"set offload_optimizer.device to nvme with an nvme_path \(2\.0 GiB\), or "
            r"set offload_optimizer.ratio to 0\.68 \(1\.\d GiB\), or "
            r"train on 2 nodes \(1\.4 GiB\)$",
        ),
        (
            2,
            "cpu",
            r"set stage to 3 and offload_optimizer.device to nvme with an nvme_path "
            r"\(2\.0 GiB\), or ",
        ),
        (3, "nvme", r"train on 2 nodes \(0\.\d GiB\)$"),
    ],
)
def test_insufficient_node_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, stage: int, device: str, advice: str
) -> None:
    plan = planned(stage, device)
    needed = plan.memory["host_bytes"]
    if device == "cpu":
        assert needed == pytest.approx(STATES + 2 * STAGING_BYTES, rel=0.001)
    monkeypatch.setattr(memory, "available_in_process", lambda: None)
    monkeypatch.setattr(memory, "available_on_node", lambda: needed)
    refuse_insufficient_memory(plan, FACTS)
    monkeypatch.setattr(memory, "available_on_node", lambda: needed - 1)
    with pytest.raises(ValueError, match=f"host memory, but this node has .*{advice}"):
        refuse_insufficient_memory(plan, FACTS)
    monkeypatch.setattr(memory, "available_on_node", lambda: None)
    refuse_insufficient_memory(plan, FACTS)


def test_process_limit_applies_to_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, share = planned(3, "cpu"), STATES // 2 + STAGING_BYTES
    monkeypatch.setattr(memory, "available_on_node", lambda: 1000 * GIB)
    monkeypatch.setattr(memory, "available_in_process", lambda: share * 102 // 100)
    refuse_insufficient_memory(plan, FACTS)
    monkeypatch.setattr(memory, "available_in_process", lambda: share * 98 // 100)
    with pytest.raises(
        ValueError, match=r"may use 1\.2 GiB: .* nvme with an nvme_path \(1\.0 GiB\), or .* 0\.6\d"
    ):
        refuse_insufficient_memory(plan, FACTS)
    assert planned(3, "nvme").memory["host_bytes"] < plan.memory["host_bytes"] * 2 // 3


def test_available_memory_is_read_from_system_and_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path)
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    assert memory.available_on_node() is None
    (tmp_path / "meminfo").write_text(
        "MemTotal: 900 kB\nMemAvailable:  500 kB\nSwapFree: 20 kB\nHugePages_Total: 0\n"
    )
    assert memory.available_on_node() == 520 * KIBI
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 7\nactive_file 1000\ninactive_file 500\n")
    assert memory.available_on_node() == 520 * KIBI
    (tmp_path / "memory.max").write_text("400000\n")
    assert memory.available_on_node() == 101_500


def test_data_limit_reduces_available_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import resource

    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name:\tpython\nVmData:\t  100 kB\n")
    monkeypatch.setattr(memory, "PROC", tmp_path)
    limits = [(resource.RLIM_INFINITY, -1), (300 * KIBI, -1), (50 * KIBI, -1)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits.pop(0))
    assert memory.available_in_process() is None
    assert memory.available_in_process() == 200 * KIBI
    assert memory.available_in_process() == 0


def test_large_states_are_mapped_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mapping is returned to the system with its tensor, whatever the heap has beside it."""
    mapped: list[int] = []
    freed: list[int] = []

    class Mapping(mmap.mmap):
        def __new__(cls, file: int, size: int, **options: int) -> "Mapping":
            mapped.append(size)
            made = super().__new__(cls, file, size, **options)
            weakref.finalize(made, freed.append, size)
            return made

    monkeypatch.setattr(mmap, "mmap", Mapping)
    sizes = [memory.MAPPED_FROM, 4 * memory.MAPPED_FROM]
    states = [memory.empty_on_host((size // 4,), pin=False).fill_(1.0) for size in sizes]
    small = memory.empty_on_host((memory.MAPPED_FROM // 4 - 1,), pin=False).fill_(1.0)
    assert mapped == sizes and freed == []
    view = states.pop()[:1]
    assert freed == [] and view.item() == 1.0
    del view
    assert freed == sizes[1:]
    del states, small
    assert freed == sizes[::-1]


def test_heap_is_trimmed_if_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    for library in (SimpleNamespace(malloc_trim=trimmed.append), SimpleNamespace()):
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda name, library=library: library)
        memory.trim_heap()
    assert trimmed == [0]
