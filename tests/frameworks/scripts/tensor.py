"""Train a tiny model whose layers are split over two ranks, with the Trainer or accelerate.

python tensor.py RESULT (trainer | accelerate | tp_size) FOLDER STAGE ACCUMULATION KIND

``tp_size``: accelerate, with the degree in its ParallelismConfig as well.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DummyOptim, ParallelismConfig, set_seed
from torch import Tensor
from torch.utils.data import DataLoader

from frameworks.on_gloo import use_gloo
from frameworks.scripts.sequence import CLIP, STEPS, samples, settings, with_trainer
from training import sequence_jobs
from training.sequence_jobs import MICRO_BATCH


def with_accelerate(
    model: Any, data: list[dict[str, Tensor]], config: dict[str, Any], degrees: Any
) -> dict[str, Any]:
    steps = config["gradient_accumulation_steps"]
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), parallelism_config=degrees
    )
    loader: Any = DataLoader(data, batch_size=MICRO_BATCH)  # pyright: ignore
    model, optimizer, loader = accelerator.prepare(model, DummyOptim(model.parameters()), loader)
    result: dict[str, Any] = {"losses": [], "norms": []}
    total = torch.zeros(())
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            total += loss.detach() / steps
            if accelerator.sync_gradients:
                norm: Any = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                result["norms"].append(float(norm))
                result["losses"].append(total.item())
                total = torch.zeros(())
            optimizer.step()
            optimizer.zero_grad()
    return result


def main(program: str, folder: str, stage: str, accumulation: str, kind: str) -> dict[str, Any]:
    use_gloo()
    set_seed(0)
    config = settings(int(stage), int(accumulation)) | {"tensor_parallel": {"autotp_size": 2}}
    model = sequence_jobs.model_of(kind, divided=False)
    data = samples(kind, STEPS * int(accumulation))
    if program == "trainer":
        return with_trainer(folder, model, data, config)
    degrees = ParallelismConfig(tp_size=2) if program == "tp_size" else None
    return with_accelerate(model, data, config, degrees)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(main(*sys.argv[2:])))
