"""The threads of a rank that updates an offloaded optimizer on the host."""

import os

import torch

from dsconfig import launch_env
from dsengine.observation.printing import print_rank0


def use_all_cores() -> None:
    """Divide the host's cores among its ranks if the launcher has set the number of threads.

    One thread per rank, torchrun's default, updates weights and sums gradients several times slower
    than memory allows. A number that the user has set, or any without a launcher of dsconfig or
    dsengine, remains.
    """
    if launch_env.DEFAULT_THREADS not in os.environ:
        return
    cores, ranks = _cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = max(1, cores // ranks)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
        print_rank0(
            f"the optimizer is offloaded: each rank uses {threads} threads ({cores} cores, {ranks} "
            f"ranks per host); set {launch_env.THREADS} for another number"
        )


def _cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
