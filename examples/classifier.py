"""A training script as written for DeepSpeed, with one changed import.

    torchrun --nproc-per-node 2 examples/classifier.py \
        --deepspeed --deepspeed_config examples/classifier_bf16.json
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import dsengine as deepspeed


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/classifier"))
    return deepspeed.add_config_arguments(parser).parse_args()


def two_rings(samples: int = 512) -> TensorDataset:
    """Points on two noisy rings; the class is the ring."""
    noise = torch.Generator().manual_seed(0)
    angle = 2 * torch.pi * torch.rand(samples, generator=noise)
    label = torch.arange(samples) % 2
    radius = 1 + label + 0.1 * torch.randn(samples, generator=noise)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), label)


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )


def main() -> None:
    deepspeed.init_distributed()
    args = parse_arguments()
    model = build_model()
    engine, _, training_dataloader, _ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=model.parameters(),
        training_data=two_rings(),
    )
    if (args.checkpoints / "latest").exists():
        engine.load_checkpoint(args.checkpoints)

    engine.train()
    loss = torch.tensor(0.0)
    for epoch in range(args.epochs):
        for points, labels in training_dataloader:
            outputs = engine(points.to(engine.device))
            loss = functional.cross_entropy(outputs.float(), labels.to(engine.device))
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    engine.save_checkpoint(args.checkpoints)
    engine.save_16bit_model(args.checkpoints / "weights")
    engine.destroy()


if __name__ == "__main__":
    main()
