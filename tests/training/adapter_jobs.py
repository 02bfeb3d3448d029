"""Jobs with adapters of peft. Each function runs on every rank."""

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

import dsengine
from dsengine.observation.memory import LiveBytes
from training.models import LLAMA

ADAPTERS: dict[str, dict[str, Any]] = {
    "linear": {"target_modules": "all-linear"},
    "biases": {"target_modules": ["q_proj", "down_proj"], "bias": "all"},
    "dora": {"target_modules": ["q_proj", "v_proj"], "use_dora": True, "use_rslora": True},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
    "modules_to_save": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "norm"]},
    "tokens": {"target_modules": ["v_proj"], "trainable_token_indices": [3, 5]},
    "experts": {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]},
}


def adapted(kind: str, tied: bool = False) -> Any:
    """Return a small model of transformers with adapters whose product is not zero."""
    import transformers as hf
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    if kind == "experts":
        base: Any = hf.MixtralForCausalLM(hf.MixtralConfig(num_local_experts=2, **LLAMA))
    else:
        base = hf.LlamaForCausalLM(hf.LlamaConfig(tie_word_embeddings=tied, **LLAMA))
    model = get_peft_model(base, LoraConfig(r=4, **ADAPTERS[kind]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) / 8)
    return model


def settings(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        **more,
    }


def _train(engine: Any, step: int) -> float:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    ids = torch.randint(97, (2, 16), generator=generator)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return loss.item()


def peak(config: dict[str, Any], nbytes: int) -> dict[str, int]:
    """Return the peak bytes of merging beside what the engine holds, and sizes of the tensors."""
    engine, *_ = dsengine.initialize(model=adapted("linear"), config=config)
    list(engine.iter_weights())  # creates its group
    live = LiveBytes(torch.device("cpu"), existing=False)
    with live.measure("export"):
        for _, tensor in engine.iter_weights(bucket_bytes=nbytes):
            del tensor
    sizes = [metadata.nbytes for metadata in engine.weight_metadata()]
    engine.destroy()
    return {"peak": live.peaks["export"], "largest": max(sizes), "total": sum(sizes)}


def exported(kind: str, config: dict[str, Any], folder: str, tied: bool = False) -> dict[str, Any]:
    """Compare merged weights and the adapter with what peft writes in one process."""
    model = adapted(kind, tied)
    reference = copy.deepcopy(model)
    engine, *_ = dsengine.initialize(model=model, config=config)
    _train(engine, 0)
    before = dict(engine.iter_weights(names="module"))
    merged = list(engine.iter_weights(bucket_bytes=2**14))
    adapter = list(engine.iter_weights(bucket_bytes=2**14, lora="adapter"))
    metadata = [*engine.weight_metadata(), *engine.weight_metadata(lora="adapter")]
    after = dict(engine.iter_weights(names="module"))
    loss = _train(engine, 1)
    engine.destroy()
    reference.to(next(iter(before.values())).dtype).load_state_dict(before, strict=False)
    if dist.get_rank() == 0:
        reference.save_pretrained(Path(folder) / "adapter")
        reference.merge_and_unload().save_pretrained(Path(folder) / "merged")
    dist.barrier()
    return {
        "changed": [name for name in before if not torch.equal(before[name], after[name])],
        "merged": _differences(dict(merged), _saved(Path(folder) / "merged")),
        "adapter": _differences(dict(adapter), _saved(Path(folder) / "adapter")),
        "metadata": [tuple(each) for each in metadata]
        == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in (*merged, *adapter)],
        "loss": loss,
    }


def _saved(folder: Path) -> dict[str, Tensor]:
    return {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}


def _differences(found: dict[str, Tensor], saved: dict[str, Tensor]) -> list[str]:
    names = sorted(found.keys() ^ saved.keys())
    return names + [n for n in saved if n in found and not torch.equal(found[n], saved[n])]


def tied(config: dict[str, Any]) -> tuple[list[str], dict[str, bool]]:
    """Return exported names, and whether an adapted embedding and its head are unchanged."""
    model = adapted("embeddings", tied=True)
    before = model.get_base_model().lm_head.weight.detach().clone()
    engine, *_ = dsengine.initialize(model=model, config=config)
    found = dict(engine.iter_weights())
    engine.destroy()
    both = ("model.embed_tokens.weight", "lm_head.weight")
    return list(found), {name: torch.equal(found[name], before) for name in both}


def prompts(config: dict[str, Any]) -> list[str]:
    """Return the errors of exporting learned prompts."""
    import transformers as hf
    from peft import PromptTuningConfig, get_peft_model

    base = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    engine, *_ = dsengine.initialize(model=get_peft_model(base, prompt), config=config)
    errors: list[str] = []
    for lora in ("merge", "adapter"):
        try:
            engine.iter_weights(lora=lora)
        except ValueError as error:
            errors.append(str(error))
    engine.destroy()
    return errors
