"""Where the system refuses what offloaded states need, every rank hears why, and none hangs."""

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
    """A file system of 64 KiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if sys.platform != "linux" or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.engine
def test_a_full_disk_is_told_before_anything_is_written(ranks: Ranks, small_disk: Path) -> None:
    (small_disk / "full").write_bytes(bytes(60 * 1024))
    with pytest.raises(RankError) as told:
        ranks.run(f"{JOBS}:started", nvme=str(small_disk))
    assert str(told.value).count("GiB are free, but the ranks of this node need") >= 2
    assert [each.name for each in small_disk.iterdir()] == ["full"]


@pytest.mark.engine
def test_a_read_only_disk_is_told(ranks: Ranks, small_disk: Path) -> None:
    remounted = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remounted, check=True)
    with pytest.raises(RankError) as told:
        ranks.run(f"{JOBS}:started", nvme=str(small_disk))
    assert str(told.value).count("cannot create files: Read-only file system") >= 2


@pytest.mark.engine
def test_a_save_that_fails_harms_neither_training_nor_checkpoints(
    ranks: Ranks, tmp_path: Path
) -> None:
    for said in ranks.run(f"{JOBS}:no_room_for_a_checkpoint", folder=str(tmp_path)):
        assert "File too large" in said["failed"]
        assert said["again"] == pytest.approx(said["expected"], rel=1e-6)
        assert said["there"] == ["before", "latest", "zero_to_fp32.py", "zero_to_torch.py"]


@pytest.mark.engine
@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_after_half_a_step_nothing_goes_on(ranks: Ranks, tmp_path: Path, device: str) -> None:
    job = f"{JOBS}:step_ended_between_tiles"
    for first, *later in ranks.run(job, folder=str(tmp_path), device=device):
        assert first == "no more"
        assert len(later) == 2
        assert all("some weights are updated, others are not" in each for each in later)


@pytest.mark.engine
def test_files_that_somebody_deletes_are_there_all_the_same(ranks: Ranks, tmp_path: Path) -> None:
    for kept, removed in ranks.run(f"{JOBS}:files_deleted", folder=str(tmp_path)):
        assert removed == kept


def test_refused_page_locked_memory_is_told_with_its_key() -> None:
    from engine_storage.jobs.tier_faults import nothing_pinned

    assert "refuses 4 MiB of page-locked main memory: set pin_memory" in nothing_pinned()


def limited(device: str, folder: Path, mebibytes: int) -> "subprocess.CompletedProcess[str]":
    return run_script("limited", device, str(folder), str(mebibytes), seconds=600)


@pytest.mark.engine
@pytest.mark.long
def test_less_memory_than_the_states_need_is_enough_with_nvme_alone(tmp_path: Path) -> None:
    """Masters, gradients and moments are 1920 MiB, and the weights 240 MiB; of the states the
    gradients alone stay in memory, and a checkpoint brings no more of them there.

    On NVMe it takes 1110 MiB, weights that backward waits for among them; the limit leaves a
    busy machine half as much again.
    """
    on_nvme = limited("nvme", tmp_path, 1650)
    assert on_nvme.returncode == 0, on_nvme.stderr
    on_host = limited("cpu", tmp_path, 1650)
    assert on_host.returncode == 1
    assert "host memory, but this process may use" in on_host.stderr
    assert "set offload_optimizer.device to nvme" in on_host.stderr
    with_more = limited("cpu", tmp_path, 5000)
    assert with_more.stdout == on_nvme.stdout, with_more.stderr
