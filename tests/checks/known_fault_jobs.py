"""Print what the installed DeepSpeed does in the situation of a rule for a known bug.

    RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=... MASTER_PORT=... python known_fault_jobs.py CODE

Run by ``test_live_faults``, one process per rank, with the release to try first on ``PYTHONPATH``.
Rank 0 prints the results of all ranks, each once, as its last line.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.superoffload import superoffload_stage3
from torch import nn

Config = dict[str, Any]
MICRO: Config = {"train_micro_batch_size_per_gpu": 1}


def _initialize(model: nn.Module, config: Config, optimizer: Any = None) -> Any:
    return deepspeed.initialize(
        model=model, config=MICRO | config, optimizer=optimizer, dist_init_required=False
    )[0]


def _sgd(model: nn.Module, learning_rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=learning_rate)


def _zero(stage: int, **keys: Any) -> Config:
    return {"zero_optimization": {"stage": stage, **keys}, "zero_allow_untested_optimizer": True}


def _inputs(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return inputs that differ between ranks."""
    generator = torch.Generator().manual_seed(1 + deepspeed.comm.get_rank())
    return torch.randn(*shape, generator=generator).to(dtype)


def _muon_step(scatters: bool) -> torch.Tensor:
    torch.manual_seed(0)
    matrix = nn.Linear(6, 6, bias=False)
    model = nn.Sequential(matrix)
    engine = _initialize(
        model,
        _zero(1, reduce_scatter=scatters)
        | {"optimizer": {"type": "Muon", "params": {"lr": 0.1, "weight_decay": 0.0}}},
    )
    engine.backward(engine(_inputs(4, 6)).square().sum())
    engine.step()
    return matrix.weight.detach().clone()


def muon_on_unreduced_gradients() -> str:
    scattered, reduced = _muon_step(scatters=True), _muon_step(scatters=False)
    return "equal" if torch.allclose(scattered, reduced, atol=1e-3) else "differs"


def muon_on_embeddings() -> str:
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(8, 4), "p": nn.Linear(4, 4)})
    cast(Any, deepspeed).set_optimizer_flags(SimpleNamespace(optimizer_name="muon"), model)
    flags = {name: cast(Any, weight).use_muon for name, weight in model.named_parameters()}
    assert flags["p.weight"] and not flags["p.bias"]
    return "Muon" if flags["embed_tokens.weight"] else "Adam"


def muon_is_adam_under_zero_init() -> str:
    with deepspeed.zero.Init(config_dict_or_path=MICRO | _zero(3)):
        model = nn.ModuleDict({"p": nn.Linear(4, 4)})
    cast(Any, deepspeed).set_optimizer_flags(SimpleNamespace(optimizer_name="muon"), model)
    return "Muon" if cast(Any, model["p"].weight).use_muon else "Adam"


def padding_added_to_weights() -> str:
    # Fills uninitialized memory with NaN.
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(nn.Linear(3, 1))
    config = _zero(
        3, stage3_use_all_reduce_for_fetch_params=True, stage3_param_persistence_threshold=0
    )
    engine = _initialize(model, config, _sgd(model))
    return "finite" if engine(_inputs(1, 3)).isfinite().all() else "NaN"


SECONDARY = {"zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0}


def secondary_shards_stale() -> str:
    config = _zero(3, **SECONDARY)
    with deepspeed.zero.Init(config_dict_or_path=MICRO | config):
        linear = nn.Linear(4, 1, bias=False)
    model = nn.Sequential(linear)
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        if deepspeed.comm.get_rank() == 0:
            linear.weight.data.fill_(1.0)
    engine = _initialize(model, config, _sgd(model))
    return "loaded" if engine(torch.ones(1, 4)).item() == 4.0 else "old"


def secondary_shard_outside_weight() -> str:
    try:
        with deepspeed.zero.Init(config_dict_or_path=MICRO | _zero(3, **SECONDARY)):
            nn.Linear(1, 1, bias=False)
    except (IndexError, RuntimeError) as error:
        return type(error).__name__
    return "built"


def adapters_gathered_in_another_dtype() -> str:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16).requires_grad_(False)
            self.adapter = nn.Linear(4, 4, bias=False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.base(inputs) + self.adapter(inputs.to(self.adapter.weight.dtype))

    model = Adapted()
    config = MICRO | _zero(3) | {"bf16": {"enabled": True}}
    deepspeed.zero.Init(module=model, config_dict_or_path=config, dtype=torch.bfloat16)
    engine = _initialize(model, config, torch.optim.SGD(model.adapter.parameters(), lr=1.0))
    try:
        for _ in range(2):
            engine.backward(engine(_inputs(1, 4, dtype=torch.bfloat16)).float().sum())
            engine.step()
    except (TypeError, RuntimeError) as error:  # NCCL's is a TypeError
        return "mixed dtypes" if "type" in str(error) else str(error)
    return "trained"


def super_offload_drops_micro_steps() -> str:
    received: list[torch.Tensor] = []

    class Recorder:
        """Replacement of the process with DeepSpeedCPUAdam, which allocates pinned memory."""

        def __init__(self, **_: Any) -> None:
            self.results: list[dict[str, Any]] = []

        def async_step(
            self,
            group: int,
            sub_group: int,
            weights: torch.Tensor,
            gradient: torch.Tensor,
            **_: Any,
        ) -> None:
            received.append(gradient.clone())
            self.results.append({"sub_group_id": sub_group, "updated_param": weights})

        def get_result(self, **_: Any) -> dict[str, Any] | None:
            return self.results.pop() if self.results else None

    cast(Any, superoffload_stage3).SuperOffloadCPUOptimizer = Recorder
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
    model = nn.Sequential(first, second)
    offload = {"device": "cpu", "super_offload": True}
    config = _zero(3, offload_optimizer=offload, sub_group_size=1)
    config |= {"gradient_accumulation_steps": 2, "zero_force_ds_cpu_optimizer": False}
    engine = _initialize(model, config, torch.optim.AdamW(model.parameters()))
    for scale in (1.0, 3.0):
        received.clear()
        engine.backward(engine(scale * torch.ones(1, 2)).sum())
        engine.step()
    # The gradient is linear in the inputs, so the first micro step adds a third to the second.
    with deepspeed.zero.GatheredParameters([first.weight]):
        last = 3.0 * first.weight.sum(dim=1) / 2
    ratio = next(each for each in received if each.numel() == 2).sum() / last.sum()
    return f"{ratio.item():.3f}"


def fused_fp16_never_steps() -> str:
    class Fused(torch.optim.SGD):
        """Optimizer that the wrapper of FusedAdam drives; torch's step instead of the kernel."""

    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = FP16_Optimizer(Fused([weight], lr=0.5))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    return "stepped" if weight[0].item() != 1.0 else "never"


def large_weight_in_other_dtype() -> str:
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    config = {"bf16": {"enabled": True}, "communication_data_type": "fp32"}
    engine = _initialize(model, config | _zero(2, reduce_bucket_size=16), _sgd(model))
    try:
        engine.backward(engine(_inputs(1, 8, dtype=torch.bfloat16)).float().sum())
        engine.step()
    except (KeyError, RuntimeError) as error:
        return type(error).__name__
    return "stepped"


def elastic_batch_above_limit() -> str:
    try:
        from deepspeed.elasticity import compute_elastic_config
    except ModuleNotFoundError:
        return "removed"
    block: Config = {"enabled": True, "max_train_batch_size": 100, "version": 0.1}
    block |= {"micro_batch_sizes": [8, 10, 12], "min_gpus": 1, "max_gpus": 100}
    return str(compute_elastic_config({"elasticity": block}, "0.10.0")[0])


def pipeline_divides_gradients_again() -> str:
    steps = 4
    layers = [nn.Linear(2, 2, bias=False) for _ in range(2)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    model = PipelineModule(
        layers,
        num_stages=2,
        partition_method="uniform",
        loss_fn=lambda outputs, _: outputs.sum(),
    )
    # Clipping, by default to 1.0, would hide the difference.
    config = {"gradient_accumulation_steps": steps, "gradient_clipping": 0.0}
    engine = _initialize(model, config, _sgd(model))
    engine.train_batch(iter([(torch.ones(1, 2), torch.ones(1, 2))] * steps))
    # Each element of both weights has the gradient 2 in every micro step.
    weight = layers[deepspeed.comm.get_rank()].weight
    return f"{(1.0 - weight[0, 0].item()) / 2.0:g}"


def bf16_quantized_as_fp16() -> str:
    builder = cast(Any, deepspeed.get_accelerator()).create_op_builder("QuantizerBuilder")
    return type(builder).__name__


JOBS: dict[str, Callable[[], str]] = {
    "DSC851": muon_on_unreduced_gradients,
    "DSC852": muon_on_embeddings,
    "DSC853": muon_is_adam_under_zero_init,
    "DSC854": padding_added_to_weights,
    "DSC855": secondary_shards_stale,
    "DSC856": secondary_shard_outside_weight,
    "DSC857": bf16_quantized_as_fp16,
    "DSC858": super_offload_drops_micro_steps,
    "DSC859": adapters_gathered_in_another_dtype,
    "DSC860": fused_fp16_never_steps,
    "DSC861": large_weight_in_other_dtype,
    "DSC862": elastic_batch_above_limit,
    "DSC863": pipeline_divides_gradients_again,
}


@contextmanager
def _ranks() -> Iterator[None]:
    # The kernel for shared memory, which gloo replaces, takes minutes to compile.
    cast(Any, sys.modules["deepspeed.comm.torch"]).build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo")
    yield
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with _ranks():
        results: list[Any] = [None] * deepspeed.comm.get_world_size()
        torch.distributed.all_gather_object(results, JOBS[sys.argv[1]]())
        if deepspeed.comm.get_rank() == 0:
            print(*sorted(set(results)), flush=True)
    os._exit(0)  # a thread of gloo that still runs would abort the process
