"""Masked language model: config in the script, checkpoints with client state, resuming."""

import argparse
import logging

import deepspeed
import deepspeed.comm as dist
import torch
from deepspeed.utils import RepeatingLoader, log_dist
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

TOKENS, MASK, IGNORED = 24, 23, -100


class Encoder(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, TOKENS)

    def forward(self, src_tokens: Tensor, tgt_tokens: Tensor) -> Tensor:
        x = self.tokens(src_tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(
            self.head(x).flatten(0, 1), tgt_tokens.flatten(), ignore_index=IGNORED
        )


def sequences(batch_size: int) -> RepeatingLoader:
    """Consecutive tokens; every fourth is masked, at different positions per sequence."""
    start = torch.arange(40)[:, None]
    tokens = (start + torch.arange(8)) % MASK
    masked = (start + torch.arange(8)) % 4 == 0
    dataset = TensorDataset(tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, IGNORED))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = torch.utils.data.Subset(dataset, range(rank, len(dataset), ranks))
    return RepeatingLoader(DataLoader(own, batch_size=batch_size))


def main(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(description="masked language model")
    parser.add_argument("--checkpoint_dir", type=str, default=None)
    parser.add_argument("--load_checkpoint_dir", type=str, default=None)
    parser.add_argument("--num_iterations", type=int, default=12)
    parser.add_argument("--checkpoint_every", type=int, default=1000)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--offload", action="store_true")
    args = parser.parse_args(arguments)

    deepspeed.init_distributed()
    torch.manual_seed(42)
    ds_config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
        "zero_optimization": {"stage": args.stage, "memory_efficient_linear": False},
    }
    if args.offload:
        ds_config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    model = Encoder(layers=2, width=16)
    model, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=ds_config
    )
    data_iterator = sequences(model.train_micro_batch_size_per_gpu())
    start_step = 1
    if args.load_checkpoint_dir is not None:
        _, client_state = model.load_checkpoint(load_dir=args.load_checkpoint_dir)
        start_step = client_state["checkpoint_step"] + 1
        for _ in range(start_step - 1):
            next(data_iterator)

    model.train()
    losses = []
    for step, batch in enumerate(data_iterator, start=start_step):
        if step > args.num_iterations:
            break
        src_tokens, tgt_tokens = (tensor.to(model.device) for tensor in batch)
        loss = model(src_tokens=src_tokens, tgt_tokens=tgt_tokens)
        model.backward(loss)
        model.step()
        losses.append(loss.item())
        if step % 4 == 0:
            log_dist(f"Loss: {sum(losses) / len(losses):.4f}", ranks=[0], level=logging.INFO)
        if args.checkpoint_dir is not None and step % args.checkpoint_every == 0:
            model.save_checkpoint(
                save_dir=args.checkpoint_dir, client_state={"checkpoint_step": step}
            )
    result = {"losses": losses, "steps": model.global_steps, "rate": model.get_lr()[0]}
    if args.checkpoint_dir is not None and args.stage > 0:
        dist.barrier()
        weights = get_fp32_state_dict_from_zero_checkpoint(args.checkpoint_dir)
        result["saved"] = sum(tensor.double().abs().sum().item() for tensor in weights.values())
    model.destroy()
    return result
