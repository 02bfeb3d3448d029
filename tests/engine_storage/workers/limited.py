"""Train, save and load with limited memory: ``limited.py DEVICE FOLDER MEBIBYTES``.

The limit applies on top of the memory used after imports and training of a first small model.
"""

import ctypes
import os
import resource
import sys
from pathlib import Path

import torch
from torch import nn

import dsengine
from ports import reserved_port

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""``M_MMAP_THRESHOLD`` and ``M_ARENA_MAX`` of mallopt(3)."""
WIDTH, LAYERS = 1024, 120
"""120 Mi parameters: 240 MiB in bf16, 1920 MiB of masters, gradients and AdamW's moments."""


def trained(device: str, folder: str, width: int, layers: int) -> list[float]:
    offload = {"device": device, "nvme_path": folder, "buffer_count": 4}
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 1_000_000,
            "reduce_bucket_size": 1_000_000,
            "offload_optimizer": offload,
        },
    }
    torch.manual_seed(0)
    with dsengine.zero.Init(config_dict_or_path=settings):
        pairs = [(nn.Linear(width, width, bias=False), nn.LayerNorm(width)) for _ in range(layers)]
        model = nn.Sequential(*(layer for pair in pairs for layer in pair))
    engine = dsengine.initialize(model=model, config=settings)[0]

    def step() -> float:
        loss = engine(torch.ones(1, width, dtype=torch.bfloat16)).float().sub(0.5).square().mean()
        engine.backward(loss)
        engine.step()
        return loss.item()

    losses = [step() for _ in range(3)]
    engine.save_checkpoint(f"{folder}/{device}{layers}")
    losses.append(step())
    engine.load_checkpoint(f"{folder}/{device}{layers}")
    losses.append(step())
    engine.destroy()
    if losses[4] != losses[3]:
        raise ValueError(f"after a load the loss is {losses[4]}, not {losses[3]}")
    return losses


def main() -> None:
    device, folder, mebibytes = sys.argv[1:]
    libc = ctypes.CDLL(None)  # makes memory use deterministic
    libc.mallopt(_ARENA_MAX, 1)
    libc.mallopt(_MMAP_THRESHOLD, 128 * 1024)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(reserved_port())
    trained(device, folder, 16, 2)
    lines = Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    limit = used + int(mebibytes) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    print(*trained(device, folder, WIDTH, LAYERS))


if __name__ == "__main__":
    main()
