"""Train a GAN with two engines in one loop."""

import argparse

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

NOISE, SIZE = 4, 6


def generator() -> nn.Module:
    return nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, SIZE), nn.Tanh())


def discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(SIZE, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())


def real_data(rank: int) -> DataLoader:
    chance = torch.Generator().manual_seed(50 + rank)
    level = torch.rand(48, 1, generator=chance) - 0.5
    return DataLoader(TensorDataset(level.expand(48, SIZE).contiguous()), batch_size=8)


def main(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(description="gan")
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--engines_forget", action="store_true")
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args(arguments)

    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    device = torch.device(get_accelerator().current_device_name())
    torch.manual_seed(3)
    netG, netD = generator().to(device), discriminator().to(device)
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.02, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.02, betas=(0.5, 0.999))
    model_engineD, optimizerD, _, _ = deepspeed.initialize(
        args=args, model=netD, model_parameters=netD.parameters(), optimizer=optimizerD
    )
    model_engineG, optimizerG, _, _ = deepspeed.initialize(
        args=args, model=netG, model_parameters=netG.parameters(), optimizer=optimizerG
    )

    chance = torch.Generator().manual_seed(60 + rank)

    def discriminator_loss(samples: Tensor, is_real: float) -> Tensor:
        output = netD(samples)
        return criterion(output, torch.full_like(output, is_real))

    losses = []
    for _ in range(args.epochs):
        for (real,) in real_data(rank):
            (model_engineD if args.engines_forget else netD).zero_grad()
            errD_real = discriminator_loss(real.to(device), 1.0)
            model_engineD.backward(errD_real)
            fake = netG(torch.randn(8, NOISE, generator=chance).to(device))
            errD_fake = discriminator_loss(fake.detach(), 0.0)
            model_engineD.backward(errD_fake)
            model_engineD.step()

            (model_engineG if args.engines_forget else netG).zero_grad()
            errG = discriminator_loss(fake, 1.0)
            model_engineG.backward(errG)
            model_engineG.step()
            losses += [(errD_real + errD_fake).item(), errG.item()]
    result = {"losses": losses, "steps": (model_engineD.global_steps, model_engineG.global_steps)}
    model_engineD.destroy()
    model_engineG.destroy()
    return result
