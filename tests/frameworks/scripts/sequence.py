"""Train a tiny Llama with samples divided along the sequence, with the Trainer or accelerate.

python sequence.py RESULT (trainer | accelerate | environment) FOLDER STAGE ACCUMULATION KIND

"environment": accelerate with the degree in environment variables. Batches are those of
``training.sequence_jobs``, in order.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import (
    DeepSpeedPlugin,
    DeepSpeedSequenceParallelConfig,
    DummyOptim,
    GradientAccumulationPlugin,
    ParallelismConfig,
    set_seed,
)
from deepspeed.utils import groups  # the replacement
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from frameworks.on_gloo import use_gloo
from training import sequence_jobs
from training.sequence_jobs import IGNORED, MICRO_BATCH, OPTIMIZERS

STEPS, DEGREE, CLIP = 6, 2, 0.5


def samples(kind: str, batches: int) -> list[dict[str, Tensor]]:
    """Return single samples with the label of each token at that token."""
    rows: list[dict[str, Tensor]] = []
    for number in range(batches):
        batch = sequence_jobs.sample_batch(kind, number)
        batch["labels"] = F.pad(batch["labels"], (1, 0), value=IGNORED)[:, :-1]
        rows += [{name: value[row] for name, value in batch.items()} for row in range(MICRO_BATCH)]
    return rows


def settings(stage: int, accumulation: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": "auto",
        "gradient_clipping": CLIP,
        "optimizer": {"type": "SGD", "params": OPTIMIZERS["SGD"]},
        "zero_optimization": {
            "stage": stage,
            "stage3_param_persistence_threshold": 0,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }


def parallelism() -> ParallelismConfig:
    return ParallelismConfig(
        sp_size=DEGREE,
        sp_backend="deepspeed",
        dp_shard_size=int(os.environ["WORLD_SIZE"]) // DEGREE,
        sp_handler=DeepSpeedSequenceParallelConfig(
            sp_seq_length=sequence_jobs.LENGTH,
            sp_seq_length_is_variable=False,
            sp_attn_implementation="sdpa",
        ),
    )


def with_trainer(
    folder: str,
    model: Any,
    data: list[dict[str, Tensor]],
    config: dict[str, Any],
    resumed: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Train and save the model; ``more``: other arguments of the Trainer."""
    options: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no"} | more
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        max_steps=STEPS,
        max_grad_norm=CLIP,
        learning_rate=OPTIMIZERS["SGD"]["lr"],
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        deepspeed=config,
        **options,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)  # pyright: ignore
    trainer.train(resume_from_checkpoint=resumed)
    trainer.save_model(folder)
    logged = [each for each in trainer.state.log_history if "loss" in each]
    return {
        "losses": [each["loss"] for each in logged],
        "norms": [each["grad_norm"] for each in logged],
    }


def with_accelerate(
    model: Any, data: list[dict[str, Tensor]], config: dict[str, Any], degrees: Any
) -> dict[str, Any]:
    steps = config["gradient_accumulation_steps"]
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
        parallelism_config=degrees,
        # Otherwise both micro batches of the last draw end a window.
        gradient_accumulation_plugin=GradientAccumulationPlugin(steps, sync_with_dataloader=False),
    )
    loader: Any = DataLoader(data, batch_size=MICRO_BATCH)  # pyright: ignore
    model, optimizer, loader = accelerator.prepare(model, DummyOptim(model.parameters()), loader)
    result: dict[str, Any] = {"losses": [], "norms": []}
    total = torch.zeros(())
    for batch in loader:
        with accelerator.accumulate(model):
            labels = batch.pop("shift_labels")
            losses, count = sequence_jobs.token_losses(model, {**batch, "labels": labels})
            counts = torch.tensor(float(count))
            dist.all_reduce(counts, group=groups._get_sequence_parallel_group())
            loss = losses * DEGREE / counts
            accelerator.backward(loss)
            total += loss.detach() / steps
            if accelerator.sync_gradients:
                norm: Any = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                result["norms"].append(float(norm))
                mean: Any = accelerator.reduce(total, "mean")
                result["losses"].append(mean.item())
                total = torch.zeros(())
            optimizer.step()
            optimizer.zero_grad()
    return result


def main(program: str, folder: str, stage: str, accumulation: str, kind: str) -> dict[str, Any]:
    use_gloo()
    set_seed(0)
    config = settings(int(stage), int(accumulation))
    replicas = int(os.environ["WORLD_SIZE"]) // DEGREE
    model = sequence_jobs.model_of(kind, divided=True)
    data = samples(kind, STEPS * int(accumulation) * replicas)
    if program == "trainer":
        return with_trainer(folder, model, data, config, parallelism_config=parallelism())
    return with_accelerate(model, data, config, parallelism() if program == "accelerate" else None)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(main(*sys.argv[2:])))
