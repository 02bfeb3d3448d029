"""A usual training loop with accelerate."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler
from transformers import AutoModelForCausalLM

from frameworks.files import names_of

FILE: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True},
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
    },
}


def plugin(stage: int, way: str) -> DeepSpeedPlugin | None:
    if way == "launched":
        return None  # the launcher's settings are in the environment
    if way == "fields":
        return DeepSpeedPlugin(
            zero_stage=stage,
            gradient_accumulation_steps=2,
            gradient_clipping=1.0,
            zero3_save_16bit_model=True,
            zero3_init_flag=stage == 3,
        )
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}
    return DeepSpeedPlugin(hf_ds_config=FILE | {"zero_optimization": zero})


def main(model_path: str, folder: str, stage: int, way: str, precision: str) -> dict[str, Any]:
    accelerator = Accelerator(deepspeed_plugin=plugin(stage, way), mixed_precision=precision)
    model: Any = AutoModelForCausalLM.from_pretrained(model_path)
    generator = torch.Generator().manual_seed(3)
    loader: Any = torch.utils.data.DataLoader(
        torch.randint(97, (48, 12), generator=generator),  # pyright: ignore[reportArgumentType]
        batch_size=4,
    )
    if way != "file":
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    else:
        optimizer = DummyOptim(model.parameters(), lr=1e-3)
        schedule = DummyScheduler(optimizer, warmup_num_steps=2)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    result: dict[str, Any] = {"losses": [], "norms": [], "again": []}

    def run_epoch(name: str) -> None:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm: Any = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    result["norms"].append(float(norm))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            result[name].append(accelerator.gather(loss.detach()).mean().item())

    run_epoch("losses")
    accelerator.save_state(folder)
    state = accelerator.get_state_dict(model)
    result["weights"] = {
        name: tensor.double().norm().item() for name, tensor in (state or {}).items()
    }
    run_epoch("again")
    first = list(result["again"])
    accelerator.load_state(folder)
    result["again"].clear()
    run_epoch("again")
    result["resumed"] = first == result["again"]
    result["class"] = type(accelerator.unwrap_model(model)).__name__
    accelerator.wait_for_everyone()
    result["files"] = names_of(Path(folder))
    result["rate"] = optimizer.param_groups[0]["lr"]
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("target", "model_path", "folder"):
        parser.add_argument(name)
    parser.add_argument("--stage", type=int)
    parser.add_argument("--way")
    parser.add_argument("--precision")
    chosen = vars(parser.parse_args())
    Path(chosen.pop("target")).write_text(json.dumps(main(**chosen)))
