"""If storage of offloaded states fails, every rank raises the cause and none hangs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_storage.scripts import run_script
from training.ranks import RankError, Ranks

JOBS = "engine_storage.jobs.tier_faults"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, if this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if sys.platform != "linux" or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("requires permission to mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.engine
def test_full_disk_is_reported_before_anything_is_written(ranks: Ranks, small_disk: Path) -> None:
    (small_disk / "full").write_bytes(bytes(60 * 1024))
    with pytest.raises(RankError) as error:
        ranks.run(f"{JOBS}:started", nvme=str(small_disk))
    assert str(error.value).count("GiB are free, but the ranks of this node need") >= 2
    assert [path.name for path in small_disk.iterdir()] == ["full"]


@pytest.mark.engine
def test_read_only_disk_is_reported(ranks: Ranks, small_disk: Path) -> None:
    remounted = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remounted, check=True)
    with pytest.raises(RankError) as error:
        ranks.run(f"{JOBS}:started", nvme=str(small_disk))
    assert str(error.value).count("cannot create files: Read-only file system") >= 2


@pytest.mark.engine
def test_failed_save_keeps_training_and_checkpoints_intact(ranks: Ranks, tmp_path: Path) -> None:
    for result in ranks.run(f"{JOBS}:checkpoint_cannot_be_written", folder=str(tmp_path)):
        assert "File too large" in result["failed"]
        assert result["again"] == pytest.approx(result["expected"], rel=1e-6)
        assert result["there"] == ["before", "latest", "zero_to_fp32.py", "zero_to_torch.py"]


@pytest.mark.engine
@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_engine_refuses_to_continue_after_partial_step(
    ranks: Ranks, tmp_path: Path, device: str
) -> None:
    job = f"{JOBS}:step_ended_between_tiles"
    for first, *later in ranks.run(job, folder=str(tmp_path), device=device):
        assert first == "no more"
        assert len(later) == 2
        assert all("some weights are updated, others are not" in message for message in later)


@pytest.mark.engine
def test_deleted_files_remain_usable(ranks: Ranks, tmp_path: Path) -> None:
    for kept, removed in ranks.run(f"{JOBS}:files_deleted", folder=str(tmp_path)):
        assert removed == kept


def test_refused_pinned_memory_is_reported_with_its_key() -> None:
    from engine_storage.jobs.tier_faults import nothing_pinned

    assert "cannot allocate 4 MiB of page-locked host memory: set pin_memory" in nothing_pinned()


def limited(device: str, folder: Path, mebibytes: int) -> "subprocess.CompletedProcess[str]":
    return run_script("limited", device, str(folder), str(mebibytes), seconds=200)


@pytest.mark.engine
@pytest.mark.long
def test_nvme_offload_trains_with_less_memory_than_the_states(tmp_path: Path) -> None:
    """Masters, gradients and moments are 1920 MiB, the weights 240 MiB. Only gradients stay in
    memory, also during a checkpoint.

    With NVMe 1110 MiB are used, including prefetched weights; the limit adds a margin of half.
    """
    on_nvme = limited("nvme", tmp_path, 1650)
    assert on_nvme.returncode == 0, on_nvme.stderr
    on_host = limited("cpu", tmp_path, 1650)
    assert on_host.returncode == 1
    assert "host memory, but this process may use" in on_host.stderr
    assert "set offload_optimizer.device to nvme" in on_host.stderr
    with_more = limited("cpu", tmp_path, 5000)
    assert with_more.stdout == on_nvme.stdout, with_more.stderr
