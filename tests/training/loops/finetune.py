"""Fine-tune a language model, optionally with LoRA; own optimizer, perplexity, saving."""

import argparse
import math
from pathlib import Path
from typing import Any, cast

import deepspeed
import torch
from deepspeed import get_accelerator
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.utils import recursive_getattr, recursive_setattr
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

VOCABULARY, WIDTH, LENGTH = 19, 16, 9


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


class LoRA(nn.Module):
    """A frozen linear layer with a trained low-rank adapter."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter, rank: int) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        try:
            rows, columns = cast(Any, weight).ds_shape  # under stage 3
        except AttributeError:
            rows, columns = weight.shape
        self.lora_right_weight = nn.Parameter(torch.zeros(columns, rank))
        self.lora_left_weight = nn.Parameter(torch.zeros(rank, rows))
        nn.init.kaiming_uniform_(self.lora_right_weight, a=math.sqrt(5))
        self.weight.requires_grad = False
        self.fused = False

    def fuse(self) -> None:
        self.weight.data += torch.matmul(self.lora_left_weight.t(), self.lora_right_weight.t())
        self.fused = True

    def forward(self, x: Tensor) -> Tensor:
        plain = F.linear(x, self.weight, self.bias)
        return plain if self.fused else plain + x @ self.lora_right_weight @ self.lora_left_weight


def convert_to_lora(model: nn.Module, scope: str, rank: int) -> nn.Module:
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and scope in n]
    for name in linear:
        module = recursive_getattr(model, name)
        recursive_setattr(model, name, LoRA(module.weight, module.bias, rank))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
    return model


def params_to_fetch(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return [
        p
        for p in parameters
        if hasattr(p, "ds_id") and cast(Any, p).ds_status == ZeroParamStatus.NOT_AVAILABLE
    ]


def fuse_lora(model: nn.Module) -> None:
    for module in [m for m in model.modules() if isinstance(m, LoRA)]:
        partitioned = hasattr(module.weight, "ds_id")
        own = [module.weight, module.bias, module.lora_left_weight, module.lora_right_weight]
        with deepspeed.zero.GatheredParameters(
            params_to_fetch(own), modifier_rank=0, enabled=partitioned
        ):
            module.fuse()


def save_model(model: nn.Module, rank: int, path: Path, stage: int) -> None:
    model_to_save: Any = model.module if hasattr(model, "module") else model
    if stage != 3:
        if rank == 0:
            state = {n: t for n, t in model_to_save.state_dict().items() if "lora" not in n}
            torch.save(state, path)
        return
    output_state_dict = {}
    for name, parameter in model_to_save.named_parameters():
        if hasattr(parameter, "ds_id"):
            with deepspeed.zero.GatheredParameters(params_to_fetch([parameter]), enabled=True):
                full = parameter.data.cpu().clone()
        else:
            full = parameter.cpu()
        if rank == 0 and "lora" not in name:
            output_state_dict[name] = full
    if rank == 0:
        torch.save(output_state_dict, path)


def grouped(model: nn.Module, weight_decay: float) -> list[dict]:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    bare = ("bias", "norm.weight")
    groups = [
        {
            "params": [p for n, p in named if not any(b in n for b in bare)],
            "weight_decay": weight_decay,
        },
        {"params": [p for n, p in named if any(b in n for b in bare)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def texts(samples: int, seed: int) -> TensorDataset:
    """Sequences with a random start and stride."""
    chance = torch.Generator().manual_seed(seed)
    start = torch.randint(VOCABULARY, (samples, 1), generator=chance)
    stride = torch.randint(1, 3, (samples, 1), generator=chance)
    return TensorDataset((start + stride * torch.arange(LENGTH)) % VOCABULARY)


def evaluation(model: nn.Module, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    model.eval()
    losses = torch.zeros((), device=device)
    for (ids,) in loader:
        with torch.no_grad():
            loss, _ = model(input_ids=ids.to(device), labels=ids.to(device))
        losses += loss.float()
    losses = losses / len(loader)
    torch.distributed.all_reduce(losses, op=torch.distributed.ReduceOp.SUM)
    losses = losses / torch.distributed.get_world_size()
    return torch.exp(losses).item(), losses.item()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="supervised fine-tuning")
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=3e-2)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--zero_stage", type=int, default=0)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--lora_dim", type=int, default=0)
    parser.add_argument("--output_dir", type=str, default=None)
    parser.add_argument("--local_rank", type=int, default=-1)
    return deepspeed.add_config_arguments(parser).parse_args(arguments)


def ds_config_of(args: argparse.Namespace) -> dict:
    device = "cpu" if args.offload else "none"
    return {
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 4
        * torch.distributed.get_world_size()
        * args.gradient_accumulation_steps,
        "steps_per_print": 10,
        "zero_optimization": {
            "stage": args.zero_stage,
            "overlap_comm": True,
            "offload_param": {"device": "none"},
            "offload_optimizer": {"device": device},
            "stage3_param_persistence_threshold": 20,
            "stage3_max_live_parameters": 3e7,
            "stage3_prefetch_bucket_size": 3e7,
            "memory_efficient_linear": False,
        },
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "wall_clock_breakdown": False,
        "hybrid_engine": {"enabled": False, "max_out_tokens": 512, "inference_tp_size": 1},
    }


def main(arguments: list[str]) -> dict:
    args = parse(arguments)
    if args.local_rank == -1:
        device = torch.device(get_accelerator().device_name())
    else:
        get_accelerator().set_device(args.local_rank)
        device = torch.device(get_accelerator().device_name(), args.local_rank)
    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    torch.manual_seed(1234)
    get_accelerator().manual_seed_all(1234)
    torch.distributed.barrier()

    model = LanguageModel()
    if args.lora_dim > 0:
        model = convert_to_lora(model, "layers.", args.lora_dim)
    train_dataset, eval_dataset = texts(48, seed=0), texts(16, seed=1)
    train_dataloader = DataLoader(
        train_dataset, sampler=DistributedSampler(train_dataset), batch_size=4
    )
    eval_dataloader = DataLoader(
        eval_dataset, sampler=SequentialSampler(eval_dataset), batch_size=4
    )
    AdamOptimizer = DeepSpeedCPUAdam if args.offload else FusedAdam
    optimizer = AdamOptimizer(
        grouped(model, args.weight_decay), lr=args.learning_rate, betas=(0.9, 0.95)
    )
    updates = args.num_train_epochs * len(train_dataloader) // args.gradient_accumulation_steps
    lr_scheduler = LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / updates)))
    model, optimizer, _, lr_scheduler = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        args=args,
        config=ds_config_of(args),
        lr_scheduler=lr_scheduler,
        dist_init_required=True,
    )

    losses, perplexities = [], [evaluation(model, eval_dataloader, device)[0]]
    for _ in range(args.num_train_epochs):
        model.train()
        for (ids,) in train_dataloader:
            loss, _ = model(input_ids=ids.to(device), labels=ids.to(device))
            model.backward(loss)
            model.step()
            losses.append(loss.item())
        perplexities.append(evaluation(model, eval_dataloader, device)[0])
        model.tput_timer.update_epoch_count()
    result = {"losses": losses, "perplexities": perplexities, "rates": lr_scheduler.get_last_lr()}
    if args.output_dir is not None:
        if args.lora_dim > 0:
            fuse_lora(model)
        path = Path(args.output_dir) / "pytorch_model.bin"
        save_model(model, rank, path, args.zero_stage)
        torch.distributed.barrier()
        loaded = LanguageModel().to(device)
        loaded.load_state_dict(torch.load(path))
        result["saved_perplexity"] = evaluation(loaded, eval_dataloader, device)[0]
    model.destroy()
    return result
