"""The dry run: the engine's own code on fake tensors agrees with the estimate."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import dsconfig
import dsengine
from cost.releases import agrees
from dsconfig.cost.estimate import DeviceMemory, Phase
from dsconfig.cost.timeline import DEQUANTIZED
from dsconfig.facts import ModelTree, hf_config
from dsconfig.facts.gathering import gather
from sweeps import sweep
from training import frozen_jobs

pytestmark = pytest.mark.torch
LONG = pytest.mark.long
"""Marks further variants of a kind, whose parts other cases cover; `make test-all` runs them."""

FIELDS = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 3, "vocab_size": 12_700}
SMALL = hf_config.model(FIELDS)
"""GPT-2 with a quarter of its layers and of its vocabulary."""


def config(stage: int, precision: str = "bf16", accumulation: int = 1) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


def check_phases(estimated: DeviceMemory, result: dict[str, Any], **slack: int) -> None:
    """Assert that a dry run agrees with the estimate in every phase."""
    for phase in Phase:
        assert agrees(estimated.phase_bytes[phase], result["phases"][phase], **slack), phase


@pytest.mark.parametrize(
    ("stage", "precision", "accumulation", "ranks"),
    [
        pytest.param(0, "bf16", 1, 2, marks=LONG),
        pytest.param(0, "bf16", 1, 1, marks=LONG),
        (0, "fp32", 4, 8),
        (1, "bf16", 1, 2),
        pytest.param(1, "fp32", 2, 2, marks=LONG),
        (2, "bf16", 2, 8),
        pytest.param(3, "bf16", 1, 2, marks=LONG),
        pytest.param(3, "fp32", 1, 64, marks=LONG),
        (3, "fp16", 2, 8),
    ],
)
def test_a_dry_run_agrees_with_the_estimate(
    stage: int, precision: str, accumulation: int, ranks: int
) -> None:
    facts = gather(gpus=ranks, model=SMALL)
    resolution = dsconfig.resolve(config(stage, precision, accumulation), facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), SMALL)
    device = dsconfig.estimate(resolution, facts).options[0].device
    check_phases(device, result)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=LONG), 3])
def test_512_ranks_of_64_sequences_agree_with_the_estimate(stage: int) -> None:
    """Dimensions that 512 does not divide are padded in gathers, but not in gradients."""
    model = hf_config.model(FIELDS | {"n_head": 16})
    facts = gather(gpus=512, nodes=64, model=model, sequence_parallel=8)
    resolution = dsconfig.resolve(config(stage), facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), model)
    device = dsconfig.estimate(resolution, facts).options[0].device
    check_phases(device, result)


MASTERS = {"enabled": True, "bf16_master_weights_and_grads": True}


@pytest.mark.parametrize(
    ("stage", "ratio", "states"),
    [
        (1, None, True),
        pytest.param(3, None, True, marks=LONG),
        pytest.param(2, 1.0, True, marks=LONG),
        (3, 1.0, False),
        pytest.param(3, 0.5, False, marks=LONG),
    ],
)
def test_a_dry_run_agrees_on_16_bit_masters(stage: int, ratio: float | None, states: bool) -> None:
    facts = gather(gpus=8, model=SMALL)
    chosen: dict[str, Any] = config(stage)
    chosen["bf16"] = MASTERS | {"bf16_optimizer_states": states}
    if ratio is not None:
        chosen["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "ratio": ratio}
        chosen["zero_optimization"]["sub_group_size"] = 1_000_000
    resolution = dsconfig.resolve(chosen, facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), SMALL)
    option = dsconfig.estimate(resolution, facts).options[0]
    check_phases(option.device, result)
    on_host = result["host"]["step"] if ratio else 0
    assert option.host.bytes // 8 == pytest.approx(on_host, rel=0.02)


OFFLOADED = {"device": "cpu"}
TILES = {"sub_group_size": 1_000_000, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}


@pytest.mark.parametrize(
    ("stage", "zero", "more"),
    [
        pytest.param(2, {"mics_shard_size": 2}, {}, marks=LONG),
        (3, {"mics_shard_size": 2}, {}),
        pytest.param(2, {**TILES, "offload_optimizer": {"device": "cpu"}}, {}, marks=LONG),
        (3, TILES, {}),
        pytest.param(2, {"offload_optimizer": OFFLOADED}, FP32_SUMS, marks=LONG),
        (3, {"offload_optimizer": OFFLOADED}, FP32_SUMS),
        pytest.param(3, {}, {"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}, marks=LONG),
        (3, {}, {"optimizer": {"type": "Adagrad", "params": {"lr": 1e-4}}}),
        (3, {}, {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}),
        pytest.param(3, {}, {"optimizer": {"type": "Muon", "params": {"lr": 1e-4}}}, marks=LONG),
    ],
    ids=[
        "mics 2",
        "mics 3",
        "tiles 2",
        "ratio 3",
        "sums 2",
        "sums 3",
        "lion",
        "adagrad",
        "torch",
        "muon",
    ],
)
def test_a_dry_run_agrees_on_replicas_tiles_sums_and_optimizers(
    stage: int, zero: dict[str, Any], more: dict[str, Any]
) -> None:
    facts = gather(gpus=8, model=SMALL)
    chosen = config(stage) | more
    chosen["zero_optimization"] = {"stage": stage, **zero}
    resolution = dsconfig.resolve(chosen, facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), SMALL)
    option = dsconfig.estimate(resolution, facts).options[0]
    check_phases(option.device, result)
    assert option.host.bytes // 8 == pytest.approx(result["host"]["step"], rel=0.02)


@pytest.mark.live
@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_dry_run_agrees_on_8_bit_states(stage: int, precision: str) -> None:
    optim = pytest.importorskip("bitsandbytes.optim")
    facts = replace(gather(gpus=4, model=SMALL), client_optimizer="AdamW8bit")
    chosen = {k: v for k, v in config(stage, precision).items() if k != "optimizer"}
    resolution = dsconfig.resolve(chosen, facts)
    plan = dsconfig.plan(resolution, facts)
    result = dsengine.simulate(plan, SMALL, optimizer=lambda given: optim.AdamW8bit(given))
    phases = dsconfig.estimate(resolution, facts).options[0].device.phase_bytes
    for phase in Phase:  # fp32 states of small weights and one codebook per weight are not counted
        assert result["phases"][phase] == pytest.approx(phases[phase], rel=1e-3)


TINY = hf_config.model(
    {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "vocab_size": 1000,
    }
)


KINDS = (
    "Adam", "AdamW", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Adagrad", "SGD",
)  # fmt: skip


@sweep(1, kind=KINDS, foreach=[True, False], decay=[0.0, 0.1])
def test_a_dry_run_agrees_on_torch_optimizer_temporaries(
    kind: str, foreach: bool, decay: float
) -> None:
    facts = gather(gpus=4, model=TINY)
    chosen = config(3) | {"zero_allow_untested_optimizer": True}
    params = {"foreach": foreach, "weight_decay": decay}
    if kind == "Adam":
        params["adam_w_mode"] = False
    chosen["optimizer"] = {"type": kind, "params": params}
    resolution = dsconfig.resolve(chosen, facts)
    simulated = dsengine.simulate(dsconfig.plan(resolution, facts), TINY)["phases"]["step"]
    estimated = dsconfig.estimate(resolution, facts).options[0].device.phase_bytes[Phase.STEP]
    assert estimated == pytest.approx(simulated, abs=4096)


@sweep(1, stage=[0, 1, 3], ranks=[1, 2, 8])
def test_a_dry_run_agrees_on_what_muon_orthogonalizes(stage: int, ranks: int) -> None:
    facts = gather(gpus=ranks, model=TINY)
    chosen = config(stage) | {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}}
    resolution = dsconfig.resolve(chosen, facts)
    simulated = dsengine.simulate(dsconfig.plan(resolution, facts), TINY)["phases"]["step"]
    estimated = dsconfig.estimate(resolution, facts).options[0].device.phase_bytes[Phase.STEP]
    assert estimated == pytest.approx(simulated, abs=4096)


PARAMETERS_TOO = {"offload_optimizer": OFFLOADED, "offload_param": OFFLOADED}


@pytest.mark.parametrize(
    ("stage", "precision", "accumulation", "ranks", "zero"),
    [
        (1, "bf16", 2, 2, {"offload_optimizer": OFFLOADED}),
        pytest.param(1, "bf16", 4, 2, {"offload_optimizer": OFFLOADED}, marks=LONG),
        pytest.param(2, "bf16", 1, 1, {"offload_optimizer": OFFLOADED}, marks=LONG),
        pytest.param(2, "fp16", 4, 2, {"offload_optimizer": OFFLOADED}, marks=LONG),
        pytest.param(2, "fp32", 2, 1, {"offload_optimizer": OFFLOADED}, marks=LONG),
        pytest.param(
            2, "bf16", 2, 4, {"offload_optimizer": OFFLOADED, "mics_shard_size": 2}, marks=LONG
        ),
        pytest.param(3, "bf16", 2, 1, {"offload_optimizer": OFFLOADED}, marks=LONG),
        pytest.param(3, "bf16", 1, 2, PARAMETERS_TOO, marks=LONG),
        (3, "fp32", 2, 1, PARAMETERS_TOO),
        pytest.param(3, "fp32", 4, 1, PARAMETERS_TOO, marks=LONG),
        (3, "bf16", 1, 2, {"offload_param": OFFLOADED}),
    ],
)
def test_a_dry_run_separates_device_and_host_memory(
    stage: int, precision: str, accumulation: int, ranks: int, zero: dict[str, Any]
) -> None:
    facts = gather(gpus=ranks, model=SMALL)
    chosen = config(stage, precision, accumulation)
    chosen["zero_optimization"] = {"stage": stage, **zero}
    resolution = dsconfig.resolve(chosen, facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), SMALL)
    option = dsconfig.estimate(resolution, facts).options[0]
    check_phases(option.device, result, slack=4096)
    assert option.host.bytes // ranks == pytest.approx(result["host"]["backward"], rel=0.02)


ADAPTED = {
    "0-here": (0, {}),
    "1-here": (1, {}),
    "2-here": (2, {}),
    "3-here": (3, {}),
    "1-offloaded": (1, {"offload_optimizer": OFFLOADED}),
    "2-offloaded": (2, {"offload_optimizer": OFFLOADED}),
    "3-offloaded": (3, {"offload_optimizer": OFFLOADED}),
    "3-parameters too": (3, PARAMETERS_TOO),
}


@sweep(1, case=ADAPTED, ranks=[1, 8])
def test_a_dry_run_agrees_on_adapters(case: tuple[int, dict[str, Any]], ranks: int) -> None:
    stage, zero = case
    facts = replace(gather(gpus=ranks), model=dsengine.describe(frozen_jobs.Adapted()))
    chosen = config(stage)
    chosen["zero_optimization"] = {"stage": stage, **zero}
    resolution = dsconfig.resolve(chosen, facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), facts.model)
    device = dsconfig.estimate(resolution, facts).options[0].device
    check_phases(device, result, slack=1024)


@pytest.mark.live
@pytest.mark.parametrize(
    ("model", "stage", "zero", "most"),
    [
        ("llama-2-13b", 2, {"offload_optimizer": OFFLOADED}, 30e9),
        ("llama-2-7b", 3, PARAMETERS_TOO, 4e9),
    ],
)
def test_a_large_model_fits_one_card_of_32_gb_in_every_phase(
    model: str, stage: int, zero: dict[str, Any], most: float
) -> None:
    facts = gather(gpus=1, model=model)
    chosen = config(stage)
    chosen["zero_optimization"] = {"stage": stage, **zero}
    resolution = dsconfig.resolve(chosen, facts)
    peaks = dsengine.simulate(dsconfig.plan(resolution, facts), model)["phases"]
    device = dsconfig.estimate(resolution, facts).options[0].device
    assert max(peaks.values()) <= most
    for phase, peak in peaks.items():
        assert agrees(device.phase_bytes[phase], peak, slack=4096), phase


@pytest.mark.parametrize(
    ("model", "stage", "base_weights"),
    [
        pytest.param("gpt2", 0, "8bit", marks=LONG),
        pytest.param("gpt2", 1, "4bit", marks=LONG),
        pytest.param("gpt2", 2, "8bit", marks=LONG),
        pytest.param("gpt2", 3, "4bit", marks=LONG),
        (SMALL, 2, "8bit"),
        (SMALL, 3, "4bit"),
        pytest.param("llama-2-7b", 3, "4bit", marks=LONG),
    ],
)
def test_a_dry_run_agrees_on_packed_base_weights(
    model: str | ModelTree, stage: int, base_weights: str
) -> None:
    facts = gather(
        gpus=2, model=model, device_memory="24GiB", lora_rank=16, base_weights=base_weights
    )
    resolution = dsconfig.resolve(config(stage), facts)
    plan = dsconfig.plan(resolution, facts)
    found = dsengine.simulate(plan, facts.model, base_weights=base_weights)["phases"]
    option = dsconfig.estimate(resolution, facts).options[0]
    device = option.device
    assert option.fits[0].fits
    # A stand-in does not decode weights, and its embedding is not gathered in backward, where no
    # input has a gradient. 8-bit weights, not sharded, are broadcast at once.
    decoded = max((c.bytes for c in device.components if c.name == DEQUANTIZED.name), default=0)
    for phase in list(Phase)[base_weights == "8bit" :]:
        expected, lowest = device.phase_bytes[phase], 0.9 if phase is Phase.BACKWARD else 0.98
        assert lowest * expected - decoded <= found[phase] <= 1.02 * expected, phase
    if model == "llama-2-7b":
        assert max(found.values()) == pytest.approx(device.peak_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        pytest.param(1, "fp32", marks=LONG),
        (2, "bf16"),
        pytest.param(3, "bf16", marks=LONG),
    ],
)
def test_a_dry_run_holds_device_and_host_together(stage: int, precision: str) -> None:
    facts = gather(gpus=2, model=SMALL, device="cpu")
    chosen = config(stage, precision)
    chosen["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    resolution = dsconfig.resolve(chosen, facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), SMALL, device="cpu")
    option = dsconfig.estimate(resolution, facts).options[0]
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        expected = option.device.phase_bytes[phase] + option.host.bytes // 2
        assert agrees(expected, result["phases"][phase]), phase


@pytest.mark.parametrize(
    ("stage", "collectives"),
    [(0, {"all_reduce"}), (2, {"reduce_scatter_tensor", "all_gather_into_tensor"})],
)
def test_traffic_of_a_step_is_one_reduction_and_one_gather_of_the_model(
    stage: int, collectives: set[str]
) -> None:
    facts = gather(gpus=8, model=SMALL)
    plan = dsconfig.plan(dsconfig.resolve(config(stage), facts), facts)
    traffic = dsengine.simulate(plan, SMALL)["traffic"]
    moved = {name: count for name, count in traffic.items() if count > 100}  # not the norm
    assert moved == {
        name: pytest.approx(2 * SMALL.parameters, rel=0.01) for name in sorted(collectives)
    }


def test_a_model_can_be_built_for_the_dry_run_with_its_activations() -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 64))

    def loss(engine: Any, rows: int) -> torch.Tensor:
        return engine(torch.zeros(rows, 64)).square().mean()

    facts = replace(gather(gpus=4), model=dsengine.describe(build()))
    plan = dsconfig.plan(dsconfig.resolve(config(1, "fp32"), facts), facts)
    few, many = (
        dsengine.simulate(plan, build, loss=lambda engine, rows=rows: loss(engine, rows))["phases"]
        for rows in (1, 1001)
    )
    # Backward starts with what autograd keeps: input, hidden, output and the two losses' parts.
    assert many["forward"] - few["forward"] >= 1000 * (64 + 512 + 64) * 4
    assert many["step"] == few["step"]


class Tabled(torch.nn.Module):
    """Looks up a part of a table that is neither a parameter nor a buffer."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weigh = torch.nn.Linear(64, 1)
        self.table = torch.zeros(rows, 64)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weigh(hidden + self.table[:8]).square().mean()


def test_views_of_model_tensors_are_not_counted_again() -> None:
    facts = replace(gather(gpus=4), model=dsengine.describe(Tabled(8)))
    plan = dsconfig.plan(dsconfig.resolve(config(1, "fp32"), facts), facts)
    few, many = (
        dsengine.simulate(
            plan, lambda rows=rows: Tabled(rows), loss=lambda engine: engine(torch.zeros(8, 64))
        )["phases"]
        for rows in (8, 100_000)
    )
    assert many == few


def test_models_whose_tensors_are_not_known_are_refused_with_a_reason() -> None:
    counted = gather(gpus=2, params="1e8")
    plan = dsconfig.plan(dsconfig.resolve(config(2), counted), counted)
    assert counted.model is not None
    with pytest.raises(ValueError, match="unknown"):
        dsengine.simulate(plan, counted.model)


FILED = {"device": "nvme", "nvme_path": "/nowhere"}


@pytest.mark.parametrize(
    ("precision", "ranks", "zero"),
    [
        pytest.param("bf16", 1, {"offload_optimizer": FILED}, marks=LONG),
        pytest.param(
            "bf16", 2, {"offload_optimizer": FILED, "sub_group_size": 1_000_000}, marks=LONG
        ),
        ("fp32", 2, {"offload_optimizer": {**FILED, "buffer_count": 16}, "sub_group_size": 10**6}),
        pytest.param(
            "bf16",
            2,
            {"offload_optimizer": {**FILED, "ratio": 0.5}, "sub_group_size": 10**6},
            marks=LONG,
        ),
        pytest.param("bf16", 2, {"offload_param": {**FILED, "max_in_cpu": 0}}, marks=LONG),
        ("bf16", 1, {"offload_optimizer": FILED, "offload_param": {**FILED, "max_in_cpu": 0}}),
        pytest.param(
            "bf16", 2, {"offload_optimizer": FILED, "offload_param": OFFLOADED}, marks=LONG
        ),
        pytest.param(
            "bf16",
            2,
            {"offload_optimizer": OFFLOADED, "offload_param": FILED | {"max_in_cpu": 0}},
            marks=LONG,
        ),
    ],
)
def test_a_dry_run_reports_file_bytes_without_writing(
    precision: str, ranks: int, zero: dict[str, Any]
) -> None:
    facts = gather(gpus=ranks, model=SMALL)
    chosen = config(3, precision)
    chosen["zero_optimization"] = {"stage": 3, **zero}
    resolution = dsconfig.resolve(chosen, facts)
    result = dsengine.simulate(dsconfig.plan(resolution, facts), SMALL)
    option = dsconfig.estimate(resolution, facts).options[0]
    check_phases(option.device, result, slack=4096)
    assert option.nvme.bytes // ranks == pytest.approx(result["nvme"]["step"], rel=0.001)
    assert option.host.bytes // ranks == pytest.approx(result["host"]["backward"], rel=0.02)


def test_a_dry_run_on_the_cpu_has_no_files() -> None:
    facts = gather(gpus=2, model="gpt2", device="cpu")
    chosen = config(3)
    chosen["zero_optimization"]["offload_optimizer"] = FILED
    plan = dsconfig.plan(dsconfig.resolve(chosen, facts), facts)
    with pytest.raises(ValueError, match="cannot simulate files"):
        dsengine.simulate(plan, "gpt2", device="cpu")


def test_built_model_is_counted_in_host_memory_only_on_cpu() -> None:
    model = hf_config.model(FIELDS | {"n_layer": 4, "vocab_size": 17_000})
    peaks: dict[str, int] = {}
    for device in ("cpu", "h100"):
        facts = gather(gpus=8, model=model, device=device)
        plan = dsconfig.plan(dsconfig.resolve(config(3), facts), facts)
        kind = "cpu" if device == "cpu" else "cuda"
        peaks[device] = dsengine.simulate(plan, model, device=kind)["phases"]["init"]
    assert peaks["cpu"] > 4 * model.parameters > 2 * peaks["h100"]
