"""Every optimizer of TrainingArguments has the class and the states of transformers 5.24."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dsconfig
from dsconfig.commands.app import app
from dsconfig.cost.choices import Choice, usual_config
from dsconfig.cost.estimator import estimate_option, inputs_of
from dsconfig.cost.optimizers import optimizer_cost, optimizer_label
from dsconfig.runtimes.base import runtime_of
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES
from dsconfig.schema.trainer_optimizers import TRAINER_OPTIMIZERS, trainer_optimizer
from narrowing import not_none

NAMES_OF_TRANSFORMERS = [
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adafactor",
    "adamw_anyprecision",
    "adamw_torch_4bit",
    "adamw_torch_8bit",
    "ademamix",
    "sgd",
    "adagrad",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "ademamix_8bit",
    "lion_8bit",
    "lion_32bit",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop",
    "rmsprop_bnb",
    "rmsprop_bnb_8bit",
    "rmsprop_bnb_32bit",
    "galore_adamw",
    "galore_adamw_8bit",
    "galore_adafactor",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "lomo",
    "adalomo",
    "grokadamw",
    "schedule_free_radam",
    "schedule_free_adamw",
    "schedule_free_sgd",
    "apollo_adamw",
    "apollo_adamw_layerwise",
    "stable_adamw",
]
"""``OptimizerNames`` of 5.23.0 and 5.24.0."""


def test_every_name_of_transformers_is_in_the_table() -> None:
    assert set(TRAINER_OPTIMIZERS) == set(NAMES_OF_TRANSFORMERS)
    assert {name for name, _ in TRAINER_OPTIMIZERS.values()} <= OPTIMIZER_CLASSES.keys()


@pytest.mark.live
def test_the_names_are_those_of_the_installed_transformers() -> None:
    training_args = pytest.importorskip("transformers.training_args")
    assert {name.value for name in training_args.OptimizerNames} == set(TRAINER_OPTIMIZERS)


@pytest.mark.parametrize(
    ("arguments", "bytes_per_element"),
    [
        ({"optim": "adamw_torch_fused"}, 8),
        ({"optim": "paged_adamw_32bit"}, 8),
        ({"optim": "paged_adamw_8bit"}, 2 + 8 / 256),
        ({"optim": "adamw_torch_4bit"}, 1 + 8 / 256),
        ({"optim": "ademamix"}, 12),
        ({"optim": "ademamix_8bit"}, 3 + 12 / 256),
        ({"optim": "lion_32bit"}, 4),
        ({"optim": "lion_8bit"}, 1 + 4 / 256),
        ({"optim": "rmsprop"}, 4),
        ({"optim": "rmsprop", "optim_args": "momentum=0.9, centered=True"}, 12),
        ({"optim": "sgd"}, 0),
        ({"optim": "sgd", "optim_args": "momentum=0.9"}, 4),
        ({"optim": "lomo"}, 0),
        ({"optim": "grokadamw"}, 12),
        ({"optim": "schedule_free_adamw"}, 8),
        ({"optim": "schedule_free_sgd"}, 4),
    ],
)
def test_bytes_of_the_states(arguments: dict[str, Any], bytes_per_element: float) -> None:
    cost = optimizer_cost(None, trainer=trainer_optimizer(arguments))
    assert cost.state_bytes(256, 4) == pytest.approx(256 * bytes_per_element)


@pytest.mark.parametrize(("stage", "bytes_per_element"), [(0, 0.004), (2, 4.004)])
def test_adafactor_factors_nothing_in_a_flat_partition(
    stage: int, bytes_per_element: float
) -> None:
    """``Adafactor._get_options``: factored with two dimensions or more."""
    option = estimated({"optim": "adafactor"}, stage)
    assert states(option) == pytest.approx(6.738e9 * bytes_per_element, rel=0.01)


def estimated(arguments: dict[str, Any], stage: int = 2) -> Any:
    facts = dsconfig.gather(model="llama-2-7b", gpus=1, seq_len=512, training_args=arguments)
    effective = usual_config(facts, Choice(stage=stage))
    return estimate_option(effective, facts, runtime="transformers")


def states(option: Any) -> int:
    return sum(part.bytes for part in option.device.components if part.name == "optimizer state")


def test_optim_changes_the_estimate_of_a_file_without_an_optimizer() -> None:
    """Moments of ``paged_adamw_8bit`` take a quarter of AdamW's."""
    config = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}
    config |= {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    sizes, labels = list[int](), list[object]()
    for optim in ("adamw_torch", "paged_adamw_8bit"):
        arguments = {"optim": optim, "bf16": True, "per_device_train_batch_size": 1}
        facts = dsconfig.gather(model="llama-2-7b", gpus=1, training_args=arguments)
        resolved = dsconfig.resolve(config, facts, runtime="transformers")
        assert resolved.ok, resolved.diagnostics
        estimate = dsconfig.estimate(resolved, facts)
        sizes.append(states(estimate.options[0]))
        labels.append(estimate.inputs["optimizer"])
    assert sizes[1] == pytest.approx(sizes[0] * (2 + 8 / 256) / 8, rel=0.001)
    assert labels == ["torch.AdamW (optim=adamw_torch)", "PagedAdamW8bit (optim=paged_adamw_8bit)"]


def test_optimizer_of_the_config_wins_over_optim() -> None:
    facts = dsconfig.gather(
        model="gpt2", gpus=1, training_args={"optim": "lion_8bit"}, micro_batch=1
    )
    plain = usual_config(facts, Choice(stage=1))
    assert plain.optimizer is None
    named = usual_config(dsconfig.gather(model="gpt2", gpus=1), Choice(stage=1))
    assert inputs_of(named, facts, runtime_of("transformers"))["optimizer"] == "AdamW"


def test_init_leaves_the_optimizer_to_the_trainer(tmp_path: Path) -> None:
    """A block in the file would override ``optim``."""
    arguments = tmp_path / "args.json"
    arguments.write_text(json.dumps({"optim": "paged_adamw_8bit", "bf16": True}))
    world = [
        "--model",
        "llama-2-7b",
        "--gpus",
        "2",
        "--device",
        "a100-80gb",
        "--host-memory",
        "256GB",
    ]
    done = CliRunner().invoke(app, ["init", *world, "--training-args", str(arguments)])
    config = json.loads(done.stdout)
    assert "optimizer" not in config and "scheduler" not in config


@pytest.mark.parametrize("name", NAMES_OF_TRANSFORMERS)
def test_the_flag_accepts_the_names_of_transformers(name: str) -> None:
    by_flag = optimizer_cost(None, name)
    assert by_flag.state_bytes(256, 4) == optimizer_cost(
        None, trainer=trainer_optimizer({"optim": name})
    ).state_bytes(256, 4)


@pytest.mark.parametrize(
    ("client", "bytes_per_element"),
    [
        ("Lion8bit", 1 + 4 / 256),
        ("bnb.optim.Lion8bit", 1 + 4 / 256),
        ("bitsandbytes.optim.AdamW8bit", 2 + 8 / 256),
        ("torchao.optim.AdamW4bit", 1 + 8 / 256),
        ("torch.optim.SGD", 0),
        ("deepspeed.ops.adam.FusedAdam", 8),
    ],
)
def test_a_client_optimizer_may_be_qualified(client: str, bytes_per_element: float) -> None:
    cost = optimizer_cost(None, client)
    assert cost.state_bytes(256, 4) == pytest.approx(256 * bytes_per_element)


@pytest.mark.parametrize("client", ["Muon", "MuonWithAuxAdam", "torch.optim.Muon"])
@pytest.mark.parametrize("model", ["llama-3-8b", None])
def test_muon_of_the_script_costs_what_muon_of_the_config_costs(
    client: str, model: str | None
) -> None:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    size: dict[str, Any] = {"params": 8e9} if model is None else {"model": model}
    muon = {**config, "optimizer": {"type": "Muon", "params": {"lr": 1e-3}}}

    def peak(config: dict[str, Any], **more: Any) -> int:
        facts = dsconfig.gather(gpus=8, **size, **more)
        resolution = dsconfig.resolve(config, facts, runtime="deepspeed")
        return dsconfig.estimate(resolution, facts).options[0].device.peak_bytes

    expected = peak(muon)
    assert peak(config, client_optimizer=client) == expected < peak(config, client_optimizer="Adam")


def test_an_unknown_optimizer_is_named_as_such() -> None:
    effective = dsconfig.resolve({"train_batch_size": 8}, runtime="deepspeed").derive()
    named = optimizer_label(not_none(effective), dsconfig.gather(client_optimizer="Sophia"))
    assert named == "AdamW (assumed; Sophia is unknown)"
