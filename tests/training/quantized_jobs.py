"""Jobs with base weights that bitsandbytes has packed. Each function runs on every rank."""

from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsengine
from training.models import LLAMA

GLOBAL_BATCH = 4


def packed(layer: nn.Linear, kind: str, storage: torch.dtype) -> Any:
    """Return ``layer`` as bitsandbytes' layer of ``kind``: nf4, fp4 or 8bit; weights not packed."""
    bnb: Any = import_module("bitsandbytes.nn")
    sizes = layer.in_features, layer.out_features
    if kind == "8bit":
        found = bnb.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False)
        found.weight = bnb.Int8Params(layer.weight.data, requires_grad=False)
        return found
    options = {"quant_type": kind, "quant_storage": storage}
    found = bnb.Linear4bit(*sizes, bias=False, compute_dtype=layer.weight.dtype, **options)
    found.weight = bnb.Params4bit(layer.weight.data, module=found, **options)
    return found


def quantized(
    kind: str,
    storage: str = "uint8",
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    pack: bool = True,
) -> Any:
    """Return a small Llama with packed linear layers and adapters whose product is not zero.

    ``pack``: False leaves the packing to the engine.
    """
    import transformers as hf
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    base: Any = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))
    base.to(dtype)
    for name, layer in list(base.named_modules()):
        if isinstance(layer, nn.Linear) and name != "lm_head":
            new = packed(layer, kind, getattr(torch, storage))
            base.set_submodule(name, new.to("cpu") if pack else new)
    base.is_loaded_in_4bit, base.is_loaded_in_8bit = kind != "8bit", kind == "8bit"
    torch.manual_seed(seed + 1)
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape).to(parameter.dtype) / 8)
    return model


def settings(stage: int, precision: str = "fp32") -> dict[str, Any]:
    found = {
        "train_micro_batch_size_per_gpu": GLOBAL_BATCH // dist.get_world_size(),
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    return found | ({} if precision == "fp32" else {precision: {"enabled": True}})


def engine_of(kind: str, stage: int, precision: str = "fp32", **model: Any) -> Any:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    model = {"dtype": dtype, **model}
    config = settings(stage, precision)
    return dsengine.initialize(model=quantized(kind, **model), config=config)[0]


def train(engine: Any, steps: range) -> list[tuple[float, float]]:
    """Return the mean loss over the global batch and the gradient norm of each step."""
    found = []
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for step in steps:
        ids = torch.randint(97, (GLOBAL_BATCH, 16), generator=torch.Generator().manual_seed(step))
        own = ids.chunk(ranks)[rank]
        loss = engine(input_ids=own, labels=own).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float()
        dist.all_reduce(mean)
        found.append((mean.item() / ranks, float(engine.get_global_grad_norm())))
    return found


def losses(kind: str, stage: int, precision: str = "fp32", **model: Any) -> list[Any]:
    engine = engine_of(kind, stage, precision, **model)
    found = train(engine, range(3))
    engine.destroy()
    return found


def module_weights(engine: Any) -> dict[str, Tensor]:
    """Return the full tensors by their names in memory, bit by bit."""
    found = dict(engine.iter_weights(names="module"))
    return {
        name: tensor.contiguous().reshape(-1).view(torch.uint8) for name, tensor in found.items()
    }


def saved(kind: str, stage: int, folder: str, **options: Any) -> Any:
    """Save after two steps; return the weights, and losses of two further steps."""
    engine = engine_of(kind, stage)
    train(engine, range(2))
    engine.save_checkpoint(folder, **options)
    found = module_weights(engine), train(engine, range(2, 4))
    engine.destroy()
    return found


def resumed(kind: str, stage: int, folder: str, seed: int = 7) -> Any:
    """Load into a model with other base weights; return what ``saved`` does."""
    engine = engine_of(kind, stage, seed=seed)
    engine.load_checkpoint(folder)
    found = module_weights(engine), train(engine, range(2, 4))
    engine.destroy()
    return found


def exported(kind: str, stage: int) -> dict[str, Any]:
    """Return what ``iter_weights`` gives, beside peft's adapter and bitsandbytes' packed bytes."""
    from peft import get_peft_model_state_dict

    reference = quantized(kind)
    engine = engine_of(kind, stage)
    expected = get_peft_model_state_dict(reference)
    adapter = dict(engine.iter_weights(lora="adapter"))
    try:
        engine.iter_weights()
        error = ""
    except ValueError as refusal:
        error = str(refusal)
    found = dict(engine.iter_weights(names="module", dtype=torch.bfloat16))
    name = "base_model.model.model.layers.1.mlp.up_proj.base_layer.weight"
    weight = found[name].contiguous().reshape(-1).view(torch.uint8)
    original = reference.get_parameter(name).data.reshape(-1).view(torch.uint8)
    engine.destroy()
    return {
        "adapter": adapter.keys() == expected.keys()
        and all(torch.equal(adapter[key], value) for key, value in expected.items()),
        "error": error,
        "packed": torch.equal(weight, original),
        "scales": sorted(
            key.removeprefix(name.removesuffix(".weight") + ".")
            for key, tensor in found.items()
            if "up_proj.base_layer" in key and "layers.1" in key and tensor.dtype is torch.float32
        ),
        "adapters in module": str(found[name.replace("base_layer", "lora_A.default")].dtype),
    }


def shard_bytes(stage: int, seed_of_others: int = 0) -> dict[str, int]:
    """Return bytes of this rank's shard and of the full packed weight, and differing weights.

    The other ranks' models are built with another seed, which must not matter.
    """
    engine = engine_of("nf4", stage, seed=seed_of_others if dist.get_rank() else 0)
    weights = module_weights(engine)
    name = "base_model.model.model.layers.0.mlp.up_proj.base_layer.weight"
    shard: Any = engine.sharding.masters[name]
    found = {"shard": shard.to_local().nbytes, "full": weights[name].numel()}
    reference = quantized("nf4")
    constants = reference.get_submodule(name.removesuffix(".weight")).weight.quant_state
    absmax = constants.absmax.reshape(-1).view(torch.uint8)
    found["different"] = int(not torch.equal(weights[f"{name}.absmax"], absmax))
    engine.destroy()
    return found
