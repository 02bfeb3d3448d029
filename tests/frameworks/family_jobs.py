"""Short training and saving of transformers' model families on ranks."""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file

import dsengine
from frameworks.families import inputs_of, loss_of, small_model

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    # A large eps, so that gradients that are only rounding errors have no effect.
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-2}},
    "gradient_clipping": 1.0,
}


def trained(model_types: list[str], stage: int, folder: str = "") -> dict[str, Any]:
    """Return three losses by family, or its failure, on every rank."""
    warnings.simplefilter("ignore")
    return {name: _train(name, stage, folder) for name in model_types}


def _train(model_type: str, stage: int, folder: str) -> Any:
    try:
        model = small_model(model_type)
    except Exception as error:
        return f"not built: {type(error).__name__}: {error}"[:200]
    zero = {"stage": stage} | ({"stage3_param_persistence_threshold": 0} if stage == 3 else {})
    engine = None
    try:
        engine, *_ = dsengine.initialize(model=model, config=CONFIG | {"zero_optimization": zero})
        losses = []
        for step in range(3):
            loss = loss_of(engine(**inputs_of(engine.module, 10 * step + dist.get_rank())))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        mean = torch.stack(losses)
        dist.all_reduce(mean)
        if folder:
            engine.save_16bit_model(Path(folder) / model_type)
        return (mean / dist.get_world_size()).tolist()
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"[:300]
    finally:
        if engine is not None:
            engine.destroy()


def exported(model_types: list[str], stage: int, folder: str) -> dict[str, str]:
    """Return by family how ``iter_weights`` differs from ``save_pretrained``, "" if it does not."""
    warnings.simplefilter("ignore")
    return {name: _export(name, stage, Path(folder) / name) for name in model_types}


def _export(model_type: str, stage: int, folder: Path) -> str:
    model: Any = small_model(model_type)
    if dist.get_rank() == 0:
        small_model(model_type).save_pretrained(folder)  # type: ignore[operator]
    dist.barrier()
    saved = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
    zero = {"stage": stage} | ({"stage3_param_persistence_threshold": 0} if stage == 3 else {})
    engine, *_ = dsengine.initialize(model=model, config=CONFIG | {"zero_optimization": zero})
    found = dict(engine.iter_weights(bucket_bytes=2**16))
    metadata = engine.weight_metadata()
    engine.destroy()
    described = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in found.items()]
    if [tuple(each) for each in metadata] != described:
        return "metadata differs"
    if found.keys() != saved.keys():
        return f"names differ: {sorted(found.keys() ^ saved.keys())}"
    different = [name for name, tensor in saved.items() if not torch.equal(found[name], tensor)]
    return f"values differ: {different}" if different else ""
