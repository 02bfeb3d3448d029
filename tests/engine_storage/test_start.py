"""init_distributed works under every launcher and refuses unusable backends."""

import os
import subprocess
import sys

import pytest
from dsengine.comm import usable_backend

from engine_storage.scripts import ROOT
from ports import reserved_port
from suite.limits import scaled

REPORT = """
import os, dsengine, torch.distributed as dist
dsengine.init_distributed(**ARGUMENTS)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
print(dist.get_rank(), dist.get_world_size(), *(os.environ[name] for name in names))
dist.barrier()
dist.destroy_process_group()
"""


def started(arguments: str = "{}", **environment: str) -> subprocess.Popen[str]:
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER", "OMPI_", "PMI_", "MV2_", "SLURM_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT / "engine"), str(ROOT)])
    kept["OMP_NUM_THREADS"] = "1"
    return subprocess.Popen(
        [sys.executable, "-c", REPORT.replace("ARGUMENTS", arguments)],
        env=kept | environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines(*processes: subprocess.Popen[str]) -> list[str]:
    return [process.communicate(timeout=scaled(60))[0].strip() for process in processes]


@pytest.mark.long
@pytest.mark.engine
def test_single_process_mpirun_and_spawn() -> None:
    port = str(reserved_port())
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": port}
    ranks = [
        started(OMPI_COMM_WORLD_RANK=r, OMPI_COMM_WORLD_LOCAL_RANK=r, **mpi) for r in ("0", "1")
    ]
    assert lines(*ranks) == ["0 2 0 2 0 127.0.0.1", "1 2 1 2 1 127.0.0.1"]
    port = str(reserved_port())
    spawned = [
        started(f"dict(rank={r}, world_size=2, dist_backend='gloo')", MASTER_PORT=port)
        for r in (0, 1)
    ]
    assert lines(started(), *spawned) == [
        "0 1 0 1 0 127.0.0.1",
        "0 2 0 2 0 127.0.0.1",
        "1 2 1 2 1 127.0.0.1",
    ]


def test_unusable_backend_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert usable_backend(None) == "gloo"
    with pytest.raises(ValueError, match="needs CUDA"):
        usable_backend("nccl")
    with pytest.raises(ValueError, match="unknown communication backend 'hccl'"):
        usable_backend("hccl")
