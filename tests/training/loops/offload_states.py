"""Offload states between steps, with a model built under zero.Init."""

import argparse

import deepspeed
import deepspeed.comm as dist
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.utils import see_memory_usage
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class SimpleModel(nn.Module):
    def __init__(self, hidden_dim: int, nlayers: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(hidden_dim, hidden_dim) for _ in range(nlayers))
        self.cross_entropy_loss = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for linear in self.linears:
            x = torch.tanh(linear(x))
        return self.cross_entropy_loss(x, y)


def loader(batch_size: int, hidden_dim: int, device: torch.device) -> DataLoader:
    chance = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(32, hidden_dim, generator=chance)
    dataset = TensorDataset(x.to(device), x.argmax(1).to(device))
    return DataLoader(dataset, batch_size=batch_size)


def main(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(description="offload states")
    parser.add_argument("--included_state", choices=[e.name for e in OffloadStateTypeEnum])
    parser.add_argument("--pin_memory", action="store_true")
    parser.add_argument("--non_blocking", action="store_true")
    parser.add_argument("--hidden_dim", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args(arguments)

    deepspeed.init_distributed()
    torch.manual_seed(11)
    config_dict = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": 3, "memory_efficient_linear": False},
    }
    include = None if args.included_state is None else [OffloadStateTypeEnum[args.included_state]]
    with deepspeed.zero.Init(config_dict_or_path=config_dict):
        model = SimpleModel(args.hidden_dim, nlayers=3)
    model, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config_dict
    )
    micro_batch = model.train_micro_batch_size_per_gpu()
    dist.barrier()
    losses, allocated = [], []
    for _ in range(args.epochs):
        for x, y in loader(micro_batch, args.hidden_dim, model.device):
            loss = model(x, y)
            model.backward(loss)
            model.step()
            losses.append(loss.item())
            allocated.append(get_accelerator().memory_allocated())
            model.offload_states(
                include=include,
                device=OffloadDeviceEnum.cpu,
                pin_memory=args.pin_memory,
                non_blocking=args.non_blocking,
            )
            dist.barrier()
            allocated.append(get_accelerator().memory_allocated())
            model.reload_states()
            dist.barrier()
    see_memory_usage("after training", force=True)
    model.destroy()
    return {"losses": losses, "allocated": allocated}
