"""Classify small images: the engine creates the loader, the loss is outside the model."""

import argparse

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc1 = nn.Linear(8 * 2 * 2, 16)
        self.fc2 = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def images(samples: int, seed: int) -> TensorDataset:
    """Noise with a brighter stripe; its position is the class."""
    noise = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    pictures = torch.rand(samples, 3, 14, 14, generator=noise)
    for picture, label in zip(pictures, labels, strict=True):
        picture[:, 3 * label : 3 * label + 3] += 1.0
    return TensorDataset((pictures - 0.5) / 0.5, labels)


def main(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(description="images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args(arguments)

    deepspeed.init_distributed()
    torch.manual_seed(1)
    net = Net()
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    model_engine, optimizer, trainloader, __ = deepspeed.initialize(
        args=args, model=net, model_parameters=parameters, training_data=images(64, seed=0)
    )
    local_device = get_accelerator().device_name(model_engine.local_rank)
    target_dtype = None
    if model_engine.bfloat16_enabled():
        target_dtype = torch.bfloat16
    elif model_engine.fp16_enabled():
        target_dtype = torch.half
    criterion = nn.CrossEntropyLoss()

    losses = []
    for _ in range(args.epochs):
        for data in trainloader:
            inputs, labels = data[0].to(local_device), data[1].to(local_device)
            if target_dtype is not None:
                inputs = inputs.to(target_dtype)
            loss = criterion(model_engine(inputs), labels)
            model_engine.backward(loss)
            model_engine.step()
            losses.append(loss.item())

    correct = total = 0
    net.eval()
    with torch.no_grad():
        for inputs, labels in DataLoader(images(32, seed=7), batch_size=4):
            if target_dtype is not None:
                inputs = inputs.to(target_dtype)
            outputs = net(inputs.to(local_device))
            _, predicted = torch.max(outputs.data, 1)
            total += labels.size(0)
            correct += (predicted == labels.to(local_device)).sum().item()
    model_engine.destroy()
    return {"losses": losses, "accuracy": correct / total, "rates": optimizer.param_groups[0]["lr"]}
