"""Engine methods that training scripts call besides the plain loop."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import dsengine
from dsengine.optimizers import build_optimizer, split_for_muon
from dsengine.optimizers.lion import Lion
from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
STAGES = [0, 1, 2, 3]


def close(curve: list[float], reference: list[float], tolerance: float = 1e-6) -> bool:
    return all(abs(a - b) <= tolerance * abs(b) for a, b in zip(curve, reference, strict=True))


def test_counters_follow_windows(ranks: Ranks) -> None:
    rows = ranks.run("training.engine_api_jobs:counters", settings=config(2, 2))[0]
    assert rows == [
        (False, False, 1, 0, 0),
        (True, True, 2, 1, 16),
        (False, False, 3, 1, 16),
        (True, True, 4, 2, 32),
    ]


def test_deepspeed_io_arguments(ranks: Ranks) -> None:
    zero, one = ranks.run("training.engine_api_jobs:loaders", settings=config(1))
    assert zero["given"] == one["given"] == [[5, 7], [1, 3]]
    assert zero["eval"] == [[0, 2, 4, 6]] and one["eval"] == [[1, 3, 5, 7]]
    assert zero["predict"] == zero["eval"] and one["predict"] == one["eval"]
    trained = [*zero["train"], *one["train"]]
    assert (
        sorted(i for batch in trained for i in batch) == list(range(8))
        and [len(b) for b in trained] == [4] * 2
    )
    assert zero["train"] not in (zero["eval"], one["eval"])
    for answer in (zero, one):
        assert (
            answer["initialize"]
            == answer["inherited"]
            == [[-i for i in batch] for batch in answer["train"]]
        )
        assert answer["workers"] == [0, 1]
        assert answer["own"] == [[i + 1 for i in batch] for batch in answer["train"]]


@pytest.mark.parametrize("backwards", [1, 3])
def test_without_managed_accumulation_every_step_is_a_boundary(
    ranks: Ranks, backwards: int
) -> None:
    """Samples are counted per backward; "never" may be written as accelerate does."""
    settings = config(1, 2, managed_gradient_accumulation=False, steps_per_print=math.inf)
    rows = ranks.run("training.engine_api_jobs:counters", settings=settings, backwards=backwards)[0]
    assert [row[3] for row in rows] == [1, 2, 3, 4]
    per_backward = 2 * settings["train_micro_batch_size_per_gpu"]
    assert [row[4] for row in rows] == [step * backwards * per_backward for step in (1, 2, 3, 4)]


@pytest.mark.parametrize("stage", STAGES)
def test_all_backward_variants_give_the_same_losses(ranks: Ranks, stage: int) -> None:
    job = "training.engine_api_jobs:ways_of_backward"
    reference = ranks.run(job, settings=config(stage, 3), way="engine")[0]
    ways = ["direct", "accelerate"] + (["no_sync"] if stage < 2 else ["coalesced"])
    for way in ways:
        curve = ranks.run(job, settings=config(stage, 3), way=way)[0]
        assert close(curve, reference), way


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_coalesced_reduction_without_managed_accumulation(ranks: Ranks, stage: int) -> None:
    job, zero = "training.engine_api_jobs:ways_of_backward", {"overlap_comm": True}
    reference = ranks.run(job, settings=config(stage, 3), way="engine")[0]
    settings = config(stage, 3, managed_gradient_accumulation=False, zero=zero)
    assert close(ranks.run(job, settings=settings, way="coalesced")[0], reference)


@pytest.mark.parametrize("stage", [1, 3])
def test_dynamic_loss_scale_with_engine_scale(ranks: Ranks, stage: int) -> None:
    job = "training.engine_api_jobs:ways_of_backward"
    settings = config(stage, 2, fp16={"enabled": True, "initial_scale_power": 8})
    reference = ranks.run(job, settings=settings, way="engine")[0]
    assert close(ranks.run(job, settings=settings, way="scaled")[0], reference)


@pytest.mark.parametrize("stage", [1, 2])
def test_invalid_call_raises_assertion_error(ranks: Ranks, stage: int) -> None:
    zero = {"overlap_comm": True}
    settings = config(stage, managed_gradient_accumulation=False, zero=zero)
    answer = ranks.run("training.engine_api_jobs:invalid_calls", settings=settings)[0]
    output, managed, samples, stepped = answer
    words = ("no_sync", "no_sync", "scalar", "managed_gradient_accumulation", "requires a model")
    assert [word in text for word, text in zip(words, output, strict=True)] == [True] * 5
    assert not managed and samples == 8 and stepped


@pytest.mark.parametrize("persistent", [0, 300])
def test_stage_3_parameters_have_compute_dtype(ranks: Ranks, persistent: int) -> None:
    zero = {"stage3_param_persistence_threshold": persistent}
    settings = config(3, bf16={"enabled": True}, zero=zero)
    for answer in ranks.run("training.engine_api_jobs:compute_dtype_views", settings=settings):
        assert answer.pop("stepped") == ["torch.float32"]
        assert answer.pop("dtypes") == answer.pop("again") == ["torch.bfloat16"]
        assert answer.pop("state") == answer.pop("gathered") == "torch.bfloat16"
        assert answer == dict.fromkeys(answer, True)


@sweep(1, prefix=["", "module."], stage=STAGES)
def test_full_weights_load_at_every_stage(ranks: Ranks, stage: int, prefix: str) -> None:
    ours, theirs, messages = ranks.run(
        "training.engine_api_jobs:loaded_weights", settings=config(stage), prefix=prefix
    )[0]
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert "nonsense" in messages[0]


@pytest.mark.parametrize("stage", STAGES)
def test_moving_engine_to_its_device_keeps_losses(ranks: Ranks, stage: int) -> None:
    reference = ranks.run("training.jobs:losses", config=config(stage), steps=3)[0]
    assert ranks.run("training.engine_api_jobs:moved", settings=config(stage))[0] == reference


def test_branch_can_be_unused(ranks: Ranks) -> None:
    last = [ranks.run("training.engine_api_jobs:branches", stage=stage)[0] for stage in STAGES]
    assert last == pytest.approx([last[0]] * 4, rel=1e-6)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(
    ("optimizer", "schedule", "names"),
    [
        ("config", "config", "AdamW WarmupLR"),
        ("config", "callable", "AdamW StepLR"),
        ("instance", "config", "SGD WarmupLR"),
        ("instance", "instance", "SGD StepLR"),
        ("callable", "callable", "SGD StepLR"),
    ],
)
def test_optimizer_and_schedule_come_from_config_or_client(
    ranks: Ranks, stage: int, optimizer: str, schedule: str, names: str
) -> None:
    rates, got = ranks.run(
        "training.engine_api_jobs:combinations",
        stage=stage,
        client_optimizer=optimizer,
        client_schedule=schedule,
    )[0]
    assert got == names
    start = 0.003 if optimizer == "config" else 0.5
    # WarmupLR is at t = 2 after three steps: ln(3) / ln(4); StepLR divides by ten each step.
    expected = start * 0.7924812503605781 if schedule == "config" else start / 1000
    assert rates == pytest.approx([expected])


OPTIMIZERS = {
    "AdamW": {"lr": 1e-3},
    "Adam": {"lr": 1e-3, "adam_w_mode": False},
    "SGD": {"lr": 1e-2, "momentum": 0.9},
    "Adagrad": {"lr": 1e-2},
    "RMSprop": {"lr": 1e-3},
    "Adamax": {"lr": 1e-3},
    "NAdam": {"lr": 1e-3},
    "RAdam": {"lr": 1e-3},
    "ASGD": {"lr": 1e-2},
    "Adadelta": {"lr": 1.0},
    "Rprop": {"lr": 1e-3},
    "Muon": {"lr": 1e-2},
    "Lion": {"lr": 1e-3, "weight_decay": 0.1},
    "Lamb": {"lr": 1e-2, "weight_decay": 0.1, "bias_correction": False},
    "Adafactor": {"lr": 1e-2, "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pytorch_optimizers_agree_across_stages(ranks: Ranks, name: str) -> None:
    job = "training.engine_api_jobs:every_optimizer"
    curves = [ranks.run(job, stage=s, name=name, params=OPTIMIZERS[name])[0] for s in (0, 2, 3)]
    tolerance = 1e-2 if name == "Muon" else 1e-5  # Muon multiplies matrices in bf16
    assert close(curves[1], curves[0], tolerance)
    assert close(curves[2], curves[0], tolerance)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LBFGS", "evaluates the loss several times"),
        ("SparseAdam", "sparse gradients, but sharded gradients are dense"),
    ],
)
def test_unsupported_optimizer_is_refused(ranks: Ranks, name: str, words: str) -> None:
    job = "training.engine_api_jobs:refused_optimizers"
    for from_config, from_client in ranks.run(job, stage=2, name=name):
        assert words in from_config and "use AdamW" in from_config.replace("or AdamW", "use AdamW")
        assert words in from_client


def test_factored_moments_load_at_other_stages(ranks: Ranks, tmp_path: Path) -> None:
    reference, *moved = ranks.run(
        "training.engine_api_jobs:factored_moments_move", folder=str(tmp_path)
    )[0]
    assert reference[-1] < reference[0]
    for curve in moved:
        assert close(curve, reference, 1e-5)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_muon_updates_matrices_and_adam_the_rest(ranks: Ranks, stage: int) -> None:
    answer = ranks.run("training.engine_api_jobs:muon_with_adam", stage=stage)[0]
    assert answer["muon"] == {"blocks.0.up.weight", "twice.weight"}
    assert {"embedding.weight", "blocks.0.up.bias", "norm.weight"} <= answer["adam"]
    assert answer["rates"] == {True: 0.05, False: 0.001}
    assert answer["curve"][-1] < answer["curve"][0]
    assert "nonsense" in answer["refused"]


def test_muon_with_adam_equals_separate_optimizers() -> None:
    def parameters() -> list[torch.nn.Parameter]:
        torch.manual_seed(0)
        return [torch.nn.Parameter(torch.randn(4, 6)), torch.nn.Parameter(torch.randn(5))]

    def stepped(optimizers: Any, over: list[torch.nn.Parameter]) -> list[torch.Tensor]:
        for _ in range(3):
            for parameter in over:
                parameter.grad = parameter.detach().sin()
            for optimizer in optimizers:
                optimizer.step()
        return [parameter.detach() for parameter in over]

    pair, (matrix, vector) = parameters(), parameters()
    params = {"lr": 0.1, "adam_lr": 0.01, "weight_decay": 0.5}
    groups = split_for_muon([{"params": pair}], params, {})
    both = stepped([build_optimizer("Muon", params, groups)], pair)
    adam = torch.optim.AdamW([vector], lr=0.01, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.5)
    muon = torch.optim.Muon([matrix], lr=0.1, momentum=0.95, weight_decay=0.5)
    alone = stepped([muon, adam], [matrix, vector])
    assert all(torch.equal(a, b) for a, b in zip(both, alone, strict=True))


def test_lion_updates_by_sign_of_momentum() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.0]))
    optimizer = Lion([weight], lr=0.1, betas=(0.5, 0.75), weight_decay=0.2)
    expected, momentum = weight.detach().clone(), torch.zeros(3)
    for gradient in (torch.tensor([1.0, -1.0, 0.0]), torch.tensor([-0.5, 0.5, 0.0])):
        weight.grad = gradient.clone()
        optimizer.step()
        direction = (0.5 * momentum + 0.5 * gradient).sign()
        momentum = 0.75 * momentum + 0.25 * gradient
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * direction
    assert torch.allclose(weight, expected)
    with pytest.raises(ValueError, match="betas"):
        Lion([weight], betas=(0.9, 1.0))


def test_client_optimizer_keeps_its_state(ranks: Ranks) -> None:
    curves = [ranks.run("training.engine_api_jobs:existing_state", stage=s)[0] for s in STAGES]
    for curve in curves[1:]:
        assert close(curve, curves[0])


def test_layer_can_have_several_names(ranks: Ranks) -> None:
    curves = [ranks.run("training.engine_api_jobs:shared_layers", stage=s)[0] for s in STAGES]
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_config_without_optimizer_evaluates(ranks: Ranks, stage: int) -> None:
    assert ranks.run("training.engine_api_jobs:evaluation_only", stage=stage)[0] > 0


@sweep(1, stage=STAGES, mixed=[{}, {"bf16": {"enabled": True, "check_grad_overflow": False}}])
def test_non_finite_gradient_raises_with_parameter_name(
    ranks: Ranks, stage: int, mixed: dict[str, Any]
) -> None:
    settings = config(stage, **mixed)
    for kind, message, unchanged, _ in ranks.run(
        "training.engine_api_jobs:failure", settings=settings, kind="nan"
    ):
        assert kind == "NonFiniteGradientError"
        assert "'scale'" in message and "step 2" in message
        assert unchanged


@pytest.mark.parametrize("stage", STAGES)
def test_overflow_skips_the_step(ranks: Ranks, stage: int) -> None:
    settings = config(stage, bf16={"enabled": True})
    results = ranks.run("training.engine_api_jobs:failure", settings=settings, kind="nan")
    assert [result[:3] for result in results] == [("", "", True)] * 2
    assert "'scale'" in results[0][3] and "step 2: skipping the step" in results[0][3]


def test_unused_parameter_raises_if_configured(ranks: Ranks) -> None:
    settings = config(2, zero={"ignore_unused_parameters": False})
    with pytest.raises(Exception, match="unused"):
        ranks.run("training.jobs:losses", config=settings, steps=1)


def test_rank_0_prints_reports(ranks: Ranks, tmp_path: Path) -> None:
    settings = config(
        1,
        steps_per_print=1,
        wall_clock_breakdown=True,
        memory_breakdown=True,
        flops_profiler={"enabled": True, "profile_step": 1},
        comms_logger={"enabled": True},
        dump_state=True,
    )
    output, other = ranks.run("training.engine_api_jobs:printed", settings=settings)
    assert "step=2, skipped=0, lr=[0.003]" in output
    assert "forward:" in output and "backward:" in output and "step:" in output
    assert "flops profile" in output and "blocks.0" in output
    assert "all_gather" in output
    assert "memory after forward" in output
    assert '"stage": 1' in output
    assert other == ""


def test_monitors_and_profiler_write_files(ranks: Ranks, tmp_path: Path) -> None:
    settings = config(
        2,
        csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "run"},
        flops_profiler={"enabled": True, "output_file": str(tmp_path / "flops.txt")},
    )
    files = ranks.run("training.engine_api_jobs:written", settings=settings, folder=str(tmp_path))[
        0
    ]
    assert "flops.txt" in files
    assert "run/Train_Samples_lr.csv" in files


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("model", [object(), "model", 5, [], {}, torch.nn.Linear])
def test_model_of_another_type_is_refused(model: Any, stage: int) -> None:
    with pytest.raises(ValueError, match=r"initialize\(model=\.\.\.\) expects a torch.nn.Module"):
        dsengine.initialize(model=model, config=config(stage))
