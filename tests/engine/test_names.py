"""The names that scripts import from deepspeed: what each of them is here, and what is refused."""

import importlib.util
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dsengine.accelerator import Accelerator, Host, get_accelerator
from dsengine.checkpoint.utils import clone_tensors_for_torch_save
from dsengine.ops.adagrad import DeepSpeedCPUAdagrad
from dsengine.ops.adam import DeepSpeedCPUAdam, FusedAdam
from dsengine.ops.lion import DeepSpeedCPULion, FusedLion
from dsengine.profiling.flops_profiler import get_model_profile
from dsengine.runtime.utils import see_memory_usage
from dsengine.utils import log_dist, logger, print_dist, recursive_getattr, recursive_setattr
from dsengine.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import nn
from torch.distributed.fsdp import FSDPModule

import dsconfig
import dsengine
from dsengine.deepspeed.refusals import INSTEAD
from dsengine.observation.printing import script_logger
from dsengine.optimizers.binding import is_elementwise
from dsengine.optimizers.lion import Lion
from training.jobs import config
from training.ranks import Ranks

ROOT = Path(__file__).parents[2]


# What is there


def documented() -> list[tuple[str, str]]:
    """(module, name) of every import that docs/internals/engine.md says works."""
    text = (ROOT / "docs" / "internals" / "engine.md").read_text()
    section = text.split("## Coming from DeepSpeed")[1].split("\n## ")[0]
    rows = re.findall(r"(?m)^\| `deepspeed([\w.]*)` \| (.+?) \|", section)
    return [
        (f"dsengine{module}", name)
        for module, names in rows
        for name in re.findall(r"`(\w+)`", names)
    ]


def test_every_documented_name_can_be_imported() -> None:
    names = documented()
    assert len(names) > 40
    for module, name in names:
        assert getattr(importlib.import_module(module), name) is not None, (module, name)


def test_modules_are_reached_from_the_package_alone() -> None:
    code = (
        "import dsengine as deepspeed; deepspeed.ops.adam.FusedAdam; deepspeed.zero.Init; "
        "deepspeed.runtime.zero.partition_parameters.ZeroParamStatus.NOT_AVAILABLE; "
        "deepspeed.runtime.lr_schedules.WarmupLR; deepspeed.utils.zero_to_fp32; "
        "deepspeed.utils.groups; deepspeed.accelerator.get_accelerator; deepspeed.get_accelerator"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_script_that_compares_releases_sees_one() -> None:
    from packaging.version import Version

    version = Version(dsengine.__version__)
    assert Version("0.19.8") <= version < Version("0.19.9")
    assert version.local is not None and version.local.startswith("dsengine")


# What is refused


@pytest.mark.parametrize("name", INSTEAD)
def test_a_refused_import_says_what_to_do_instead(name: str) -> None:
    words = f"does not implement deepspeed.{name}".replace(".", r"\.")
    above, _, leaf = f"dsengine.{name}".rpartition(".")
    with pytest.raises((ImportError, AttributeError), match=words) as refused:
        if leaf.startswith("_"):  # of a module, not a module itself
            getattr(importlib.import_module(above), leaf)
        else:
            importlib.import_module(f"dsengine.{name}.anything")
    assert INSTEAD[name] in str(refused.value)


def test_every_way_to_a_refused_name_ends_in_the_same_words() -> None:
    with pytest.raises(ImportError, match="stage 3"):
        from dsengine.moe.layer import MoE  # type: ignore[import-not-found] # noqa: F401
    with pytest.raises(ImportError, match="stage 3"):
        from dsengine import PipelineModule  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(AttributeError, match=r"generate\(\)"):
        dsengine.init_inference()  # type: ignore[attr-defined]
    assert not hasattr(dsengine, "init_inference")


@pytest.mark.parametrize(
    "attempt",
    ["deepspeed.comm.TorchBackend", "deepspeed.runtime.domino", "deepspeed.ops.transformer"],
)
def test_a_refused_name_says_so_in_a_script_that_begins_with_it(attempt: str) -> None:
    above, _, leaf = attempt.rpartition(".")
    for code, error in (
        (f"import deepspeed\n{attempt}", "AttributeError"),
        (f"from {above} import {leaf}", "ImportError"),
    ):
        code = f"import dsengine.as_deepspeed\n{code}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert f"{error}: dsengine does not implement {attempt}: " in done.stderr


def test_what_nobody_knows_is_an_ordinary_failure() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'dsengine.nonsense'"):
        importlib.import_module("dsengine.nonsense")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dsengine.nonsense  # type: ignore[attr-defined]


# Optimizers


def stepped(kind: Any, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 3))
    optimizer = kind([weight], **options)
    for _ in range(5):
        weight.grad = torch.randn(5, 3)
        optimizer.step()
    return weight.detach()


COMMON = {"lr": 1e-2, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("kind", "options", "like", "plain"),
    [
        (FusedAdam, {}, torch.optim.AdamW, {}),
        (FusedAdam, {"adam_w_mode": False}, torch.optim.Adam, {}),
        (DeepSpeedCPUAdam, {}, torch.optim.AdamW, {}),
        (DeepSpeedCPUAdam, {"adamw_mode": False}, torch.optim.Adam, {}),
        (DeepSpeedCPUAdagrad, {}, torch.optim.Adagrad, {}),
        (FusedLion, {}, Lion, {}),
        (DeepSpeedCPULion, {}, Lion, {}),
    ],
)
def test_an_optimizer_updates_as_the_one_it_is(
    kind: Any, options: dict[str, Any], like: Any, plain: dict[str, Any]
) -> None:
    ours, reference = stepped(kind, **COMMON, **options), stepped(like, **COMMON, **plain)
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, FusedLion])
def test_weights_do_not_decay_by_default(kind: Any) -> None:
    torch.testing.assert_close(stepped(kind), stepped(kind, weight_decay=0.0), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "option", "words"),
    [
        (FusedAdam, {"amsgrad": True}, "amsgrad"),
        (FusedAdam, {"bias_correction": False}, "bias_correction"),
        (DeepSpeedCPUAdam, {"bias_correction": False}, "bias_correction"),
        (DeepSpeedCPUAdagrad, {"amsgrad": True}, "amsgrad"),
    ],
)
def test_what_an_optimizer_cannot_do_is_refused_by_name(
    kind: Any, option: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kind([nn.Parameter(torch.zeros(1))], **option)


@pytest.mark.parametrize("kind", [DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, DeepSpeedCPULion])
def test_states_beside_16_bits_are_of_fp32_unless_they_are_not_to_be(kind: Any) -> None:
    torch.manual_seed(0)
    start, steps = torch.randn(64), torch.randn(5, 64).bfloat16()
    for wide in (True, False):
        weight = nn.Parameter(start.bfloat16())
        at_first, reference = weight.data, nn.Parameter(start.bfloat16().float())
        narrow, exact = kind([weight], fp32_optimizer_states=wide), kind([reference])
        for gradient in steps:
            weight.grad, reference.grad = gradient.clone(), gradient.float()
            assert narrow.step(lambda: 3.0) == 3.0
            exact.step()
            reference.data.copy_(reference.bfloat16())  # weights are rounded after each step
            assert weight.data.data_ptr() == at_first.data_ptr()
            assert weight.grad.dtype is weight.dtype is torch.bfloat16
        states = [s for s in narrow.state[weight].values() if s.numel() > 1]
        assert {each.dtype for each in states} == {torch.float32 if wide else torch.bfloat16}
        assert not wide or torch.equal(weight.float(), reference)


@pytest.mark.parametrize("kind", [FusedAdam, FusedLion])
def test_gradients_go_or_become_zero_as_was_said(kind: Any) -> None:
    for set_grad_none, left in ((True, None), (False, [0.0, 0.0])):
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        kind([weight], set_grad_none=set_grad_none).zero_grad()
        assert (None if weight.grad is None else weight.grad.tolist()) == left


class Renamed(torch.optim.AdamW):
    """Other defaults, the same update."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.5)


class Changed(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_subclass_that_leaves_the_update_alone_steps_parts() -> None:
    parameter = [nn.Parameter(torch.zeros(1))]
    kinds = [Renamed, FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, FusedLion]
    for kind in kinds:
        assert is_elementwise(kind)
        kind(parameter)  # torch wraps ``step`` of the class now
        assert is_elementwise(kind)
    assert not is_elementwise(Changed)


def test_a_changed_update_is_seen_before_torch_has_wrapped_any_step() -> None:
    code = (
        "import torch; from dsengine.optimizers.binding import is_elementwise\n"
        "class Changed(torch.optim.AdamW):\n    def step(self): ...\n"
        "assert not is_elementwise(Changed) and is_elementwise(torch.optim.AdamW)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert not is_elementwise(torch.optim.Adafactor)


# Devices, lines, helpers


def test_a_program_that_asks_for_kernels_hears_what_is_offered() -> None:
    from dsengine.ops import __compatible_ops__
    from dsengine.ops.aio import AsyncIOBuilder
    from dsengine.ops.op_builder import ALL_OPS, CPUAdamBuilder, FusedLambBuilder

    assert __compatible_ops__[CPUAdamBuilder.NAME] and CPUAdamBuilder().is_compatible()
    assert __compatible_ops__[AsyncIOBuilder.NAME]
    assert not __compatible_ops__["fused_lamb"] and not FusedLambBuilder().is_compatible()
    assert set(__compatible_ops__) == set(ALL_OPS)
    with pytest.raises(NotImplementedError, match="no kernel fused_lamb"):
        FusedLambBuilder().load()


def test_a_model_is_built_on_a_device_and_in_a_dtype() -> None:
    with dsengine.OnDevice(dtype=torch.bfloat16, device="meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        positions = torch.arange(4)
        assert torch.zeros(2, requires_grad=True).is_leaf
    assert {(each.device.type, each.dtype) for each in model.parameters()} == {
        ("meta", torch.bfloat16)
    }
    assert positions.device.type == "cpu"  # as DeepSpeed has it
    with dsengine.OnDevice(dtype=torch.bfloat16, device="meta", enabled=False):
        assert nn.Linear(2, 2).weight.dtype is torch.float32
    assert nn.Linear(2, 2).weight.device.type == "cpu"


def test_a_build_is_told_as_it_runs() -> None:
    from dsengine.git_version_info import compatible_ops, installed_ops, torch_info, version

    assert version == dsengine.__version__ and compatible_ops["cpu_adam"]
    parts = (dsengine.__version_major__, dsengine.__version_minor__, dsengine.__version_patch__)
    assert version.startswith("{}.{}.{}+".format(*parts))
    assert dsengine.__git_hash__ is dsengine.__git_branch__ is None
    assert not any(installed_ops.values()) and torch.__version__.startswith(torch_info["version"])
    assert all(torch_info[f"{each}_version"].count(".") for each in ("cuda", "nccl", "hip"))


def test_a_release_of_torch_lies_between_two() -> None:
    from dsengine.utils.torch import required_torch_version

    assert required_torch_version(min_version=2.1) and required_torch_version("2.11", "99")
    assert not required_torch_version(max_version=2.1)
    with pytest.raises(ValueError, match="min_version or max_version"):
        required_torch_version()


def test_groups_without_experts_of_ranks_stay_as_they_are() -> None:
    from dsengine.moe.utils import (
        is_moe_param,
        split_params_into_different_moe_groups_for_optimizer,
    )

    weight = nn.Parameter(torch.zeros(2))
    group = {"params": [weight], "name": "all"}
    assert split_params_into_different_moe_groups_for_optimizer(group) == [group]
    weight.allreduce = False  # DeepSpeed's mark
    assert is_moe_param(weight)
    with pytest.raises(NotImplementedError, match="keep experts as ordinary modules"):
        split_params_into_different_moe_groups_for_optimizer([group])


def test_the_accelerator_is_the_device_that_engines_use() -> None:
    device = get_accelerator()
    assert device is dsengine.get_accelerator()
    assert isinstance(device, Host) is not torch.cuda.is_available()
    assert torch.zeros(1).to(device.current_device_name()).device.type == device.device_name()
    assert device.device_count() >= 1 and device.is_available()
    assert 0 < device.memory_allocated() <= device.total_memory()
    assert torch.float32 in device.supported_dtypes()
    device.set_device(0)
    device.synchronize()
    device.empty_cache()
    pinned = device.pin_memory(torch.ones(2, 3), make_copy=False, match_shape=False)
    assert pinned.numel() == 6 and device.unpin_memory(pinned) is None


def test_a_seed_given_to_the_accelerator_is_that_of_its_device() -> None:
    device = get_accelerator()
    numbers = []
    for _ in range(2):
        device.manual_seed_all(5)
        numbers.append(torch.rand(3, device=device.device_name()).tolist())
    assert numbers[0] == numbers[1]


def test_cuda_devices_are_named_by_their_index() -> None:
    assert Accelerator().device_name() == "cuda"
    assert Accelerator().device_name(1) == "cuda:1"
    assert Accelerator().max_memory_allocated == torch.cuda.max_memory_allocated
    assert Accelerator().communication_backend_name() == "nccl"


def test_without_a_process_group_everybody_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    log_dist("a message", ranks=[0])
    print_dist("another", ranks=[3])
    logger.warning("a third")
    log_dist("too small to tell", level=logging.DEBUG)
    said = capsys.readouterr().out
    assert re.search(r"\[INFO\] \[Rank -1\] a message\n", said)
    assert "[Rank -1] another\n" in said and "[WARNING] a third\n" in said
    assert "too small" not in said


def test_memory_is_told_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    see_memory_usage("before")
    assert capsys.readouterr().out == ""
    see_memory_usage("before", force=True)
    said = capsys.readouterr().out
    assert said.startswith("before\n") and re.search(r"MA 0\.\d\d GiB Max_MA", said)


def test_parts_of_a_module_by_name() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3)), nn.ReLU())
    assert recursive_getattr(model, "0.0.weight").shape == (3, 2)
    replacement = nn.Linear(2, 5)
    recursive_setattr(model, "0.0", replacement)
    recursive_setattr(model, "1", replacement)
    assert model[0][0] is replacement and model[1] is replacement  # type: ignore[index]


def test_clones_hold_only_what_they_show(tmp_path: Path) -> None:
    view = torch.zeros(1000)[:2]
    cloned = clone_tensors_for_torch_save({"a": [view, 3], "b": (view,)})
    assert cloned["a"][1] == 3 and torch.equal(cloned["b"][0], view)
    assert cloned["a"][0].untyped_storage().nbytes() == 8
    assert view.untyped_storage().nbytes() == 4000


def test_a_profile_counts_multiply_adds() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    counted = get_model_profile(model, (2, 8), print_profile=False, as_string=False)
    multiply_adds = 2 * (8 * 16 + 16 * 4)
    assert counted == (2 * multiply_adds, multiply_adds, 8 * 16 + 16 + 16 * 4 + 4)
    assert model.training
    words = get_model_profile(model, args=[torch.zeros(2, 8)], print_profile=False)
    assert words == ("768", "384", "212")


def test_a_profile_goes_to_the_file_that_is_named(tmp_path: Path) -> None:
    target = tmp_path / "profile.txt"
    get_model_profile(nn.Linear(3, 4), (5, 3), output_file=str(target))
    assert "120 FLOPs" in target.read_text()
    with pytest.raises(ValueError, match="args or kwargs"):
        get_model_profile(nn.Linear(3, 4))


def test_leaf_modules_are_found_by_class_or_name() -> None:
    from dsengine.utils import set_z3_leaf_modules

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert set_z3_leaf_modules(model, [nn.Linear]) == [model[0], model[2]]
    assert set_z3_leaf_modules(model, ["ReLU"]) == [model[1]]
    assert set_z3_leaf_modules(model, ["Conv2d"], raise_if_not_found=False) == []
    with pytest.raises(ValueError, match="Conv2d"):
        set_z3_leaf_modules(model, ["Conv2d"])


def test_frozen_parameters_are_left_out_when_saving_not_when_reading() -> None:
    with pytest.raises(ValueError, match="save_checkpoint"):
        get_fp32_state_dict_from_zero_checkpoint("anywhere", exclude_frozen_parameters=True)


# On ranks


@pytest.mark.engine
@pytest.mark.parametrize("stage", [2, 3])
def test_a_parameter_says_whether_it_is_divided(ranks: Ranks, stage: int) -> None:
    settings = config(stage, zero={"stage3_param_persistence_threshold": 0})
    for told in ranks.run("training.name_jobs:statuses", settings=settings):
        (rows, columns), elements, _ = told["built"]
        assert elements == rows * columns
        assert told["says nothing"] and told["ids"] and told["shapes"]
        if stage == 3:
            assert told["divided"] > 5
            assert told["before"] and told["inside"] and told["after"]
        else:
            assert told["divided"] == 0 and told["whole"] > 5


SETTINGS = {
    "stage 1": config(1, 2),
    "stage 2": config(2, 2),
    "stage 3": config(3, 2),
    "on the host": config(3, 2, zero={"offload_optimizer": {"device": "cpu"}}),
    "on NVMe": config(3, 2, zero={"sub_group_size": 2000}),
}


def settings_of(name: str, folder: Path) -> dict[str, Any]:
    if name != "on NVMe":
        return SETTINGS[name]
    place = {"device": "nvme", "nvme_path": str(folder)}
    zero = SETTINGS[name]["zero_optimization"] | {"offload_optimizer": place}
    return SETTINGS[name] | {"zero_optimization": zero}


@pytest.mark.engine
@pytest.mark.parametrize("name", SETTINGS)
def test_states_are_told_whole_and_alike_at_every_stage(
    ranks: Ranks, name: str, tmp_path: Path
) -> None:
    job, reference = "training.name_jobs:whole_states", config(0, 2)
    expected = ranks.once(job, settings=reference)[0]
    assert len(expected["masters"]) > 5
    for told in ranks.run(job, settings=settings_of(name, tmp_path)):
        for kind in ("masters", "moments"):
            for key, values in expected[kind].items():
                assert told[kind][key] == pytest.approx(values, rel=1e-4, abs=1e-7), (kind, key)
        for key, values in expected["gradients"][-1].items():
            assert told["gradients"][-1][key] == pytest.approx(values, rel=1e-4, abs=1e-7), key
        assert not any(each is None for each in told["gradients"][0].values())
        assert told["left"] == [None] * len(told["left"])
        assert told["stranger"] is None


@pytest.mark.engine
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_is_not_reduced_yet_is_a_ranks_own(ranks: Ranks, stage: int, bf16: bool) -> None:
    settings = config(stage, 4, bf16={"enabled": bf16})
    for told in ranks.run("training.name_jobs:unreduced", settings=settings):
        assert told == dict.fromkeys(told, True)


def test_hooks_are_shown_as_off_while_a_model_generates(ranks: Ranks) -> None:
    told = ranks.run("training.name_jobs:unwrapped", settings=config(3))
    assert told == [[(True, False), (False, True), (True, False)]] * 2


@pytest.mark.engine
@pytest.mark.parametrize("checks", [False, True])
def test_writes_that_would_be_discarded_are_refused_where_asked(ranks: Ranks, checks: bool) -> None:
    zero = {"enable_sanity_checks": checks, "stage3_param_persistence_threshold": 300}
    both = ranks.run("training.name_jobs:writes_discarded", settings=config(3, zero=zero))
    assert [told.pop("failed") for told in both] == ["of this rank alone", ""]
    for told in both:
        for refused in ("built", "divided", "assigned", "whole"):
            assert ("in-place modification" in told[refused]) is checks, refused
        assert told["read"] == told["kept"] == ""
        assert told["same"] and told["persist"] == [False, True]


@pytest.mark.engine
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_checkpoint_is_read_whole_by_one_process_alone(
    ranks: Ranks, tmp_path: Path, stage: int
) -> None:
    job, settings = "training.name_jobs:whole_weights", config(stage, bf16={"enabled": True})
    told = ranks.run(job, settings=settings, folder=str(tmp_path))[0]
    assert told == {"equal": True, "fp32": True, "loaded": True, "tied": True}


needs_zeros = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="torch before 2.13"
)


@needs_zeros
@pytest.mark.engine
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_may_take_different_experts(
    ranks: Ranks, stage: int, accumulation: int, marked: bool
) -> None:
    job, steps = "training.name_jobs:routed", {"gradient_accumulation_steps": accumulation}
    whole = ranks.once(job, settings=config(0, **steps), marked=marked)
    divided = ranks.run(job, settings=config(stage, **steps), marked=marked)
    for (leaves, curve), (_, expected) in zip(divided, whole, strict=True):
        assert leaves == (2 if marked else 0)
        assert curve == pytest.approx(expected, rel=1e-5)


@needs_zeros
@pytest.mark.engine
@pytest.mark.parametrize("named", [["Experts"], ["Routed"]])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_leaf_outside_of_the_blocks_is_gathered_as_one(
    ranks: Ranks, stage: int, named: list[str]
) -> None:
    """One that is no repeated block, and the whole model."""
    job, zero = "training.name_jobs:routed", {"leaf_module": {"classes": named}}
    (_, expected), _ = ranks.run(job, settings=config(0), layers=1, marked=False)
    (_, curve), _ = ranks.run(job, settings=config(stage, zero=zero), layers=1, marked=False)
    assert curve == pytest.approx(expected, rel=1e-5)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("stage", "name", "precision", "kinds"),
    [
        (0, "AdamW", "fp32", ["FusedAdam", "Optimizer"]),
        (0, "AdamW", "bf16", ["FusedAdam", "Optimizer", "FP16_Optimizer"]),
        (0, "SGD", "bf16", ["Optimizer", "FP16_UnfusedOptimizer"]),
        (2, "Lion", "fp32", ["FusedLion", "Optimizer", "ZeROOptimizer", "DeepSpeedZeroOptimizer"]),
        (
            3,
            "Adam",
            "fp16",
            [
                "DeepSpeedCPUAdam",
                "Optimizer",
                "ZeROOptimizer",
                "DeepSpeedZeroOptimizer_Stage3",
                "to be scaled",
            ],
        ),
    ],
)
def test_an_optimizer_is_of_the_class_that_deepspeed_builds(
    ranks: Ranks, stage: int, name: str, precision: str, kinds: list[str]
) -> None:
    offload = {"offload_optimizer": {"device": "cpu"}} if stage == 3 else {}
    settings = config(stage, zero=offload)
    if precision != "fp32":
        settings[precision] = {"enabled": True}
    settings["optimizer"] = {"type": name, "params": {"lr": 1e-3}}
    told = ranks.run("training.name_jobs:kinds_of_optimizer", settings=settings)[0]
    assert told == kinds


def test_estimates_of_deepspeeds_names_are_those_of_compat(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dsengine.runtime.zero import stage3, stage_1_and_2

    model = nn.Sequential(nn.Linear(1000, 3000), nn.Linear(3000, 1000))
    total, largest = 6_004_000, 3_003_000
    stage3.estimate_zero3_model_states_mem_needs_all_live(model, 2, 3)
    assert capsys.readouterr().out == dsconfig.zero3_table(total, largest, 2, 3)
    stage_1_and_2.estimate_zero2_model_states_mem_needs_all_live(model, 2, 3)
    assert capsys.readouterr().out == dsconfig.zero2_table(total, 2, 3)
    host, device, layer = stage3.estimate_zero3_model_states_mem_needs(total, largest, 2, 1)
    assert (host, device, layer) == (int(total * 18 * 1.5), 4 * largest, 4 * largest)
    assert stage_1_and_2.estimate_zero2_model_states_mem_needs(total, 2) == (
        int(total * 16 * 1.5),
        2 * total,
    )


def test_a_config_class_of_a_script_takes_former_names(caplog: pytest.LogCaptureFixture) -> None:
    from dsengine.runtime.config_utils import DeepSpeedConfigModel
    from pydantic import Field

    about = {"deprecated": True, "new_param": "sizes", "new_param_fn": lambda one: [one]}

    class Settings(DeepSpeedConfigModel):
        size: int | None = Field(None, json_schema_extra=about)
        sizes: list[int] | None = None
        depth: int = Field(1, alias="layers")

    assert Settings(layers=3).depth == Settings(depth=3).depth == 3
    assert Settings(depth="auto").depth == 1
    with caplog.at_level("WARNING", logger=script_logger.name):
        script_logger.addHandler(caplog.handler)
        assert Settings(size=4).sizes == [4]
        script_logger.removeHandler(caplog.handler)
    assert "size is deprecated: use sizes" in caplog.text
    for wrong in ({"depth": "much"}, {"dept": 1}, {"size": 4, "sizes": [4]}):
        with pytest.raises(ValueError, match=r"dept|size"):
            Settings(**wrong)


def test_a_trimmed_mean_leaves_out_both_ends() -> None:
    from dsengine.utils.timer import SynchronizedWallClockTimer, trim_mean

    values = [100.0, *range(1, 9), -50.0]
    assert trim_mean(values, 0.1) == 4.5 and values[0] == 100.0
    assert trim_mean([], 0.1) == 0 and trim_mean([1.0, 2.0, 9.0], 0.9) == 2.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        trim_mean(values, 1.5)
    timer = SynchronizedWallClockTimer()("step")
    timer.records.extend(values)
    assert timer.mean() == 4.5


@pytest.mark.engine
def test_the_optimizer_tells_overflow_and_scale(ranks: Ranks) -> None:
    fp16 = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}
    job = "training.name_jobs:told_optimizer"
    rows = ranks.run(job, settings=config(1, fp16=fp16))[0]
    assert rows == [(False, 256, 256), (False, 256, 256), (True, 128, 128), (False, 128, 128)]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("stage", "name"),
    [(2, "single_partition_of_fp32_groups"), (3, "fp32_partitioned_groups_flat")],
)
def test_the_optimizer_tells_its_masters(ranks: Ranks, stage: int, name: str) -> None:
    settings = config(stage, bf16={"enabled": True})
    told = ranks.run("training.name_jobs:told_masters", settings=settings, name=name)
    assert {str(each[0]) for each in told} == {"{'torch.float32'}"}
    assert told[0][1] + told[1][1] == told[0][2]


@pytest.mark.engine
@pytest.mark.parametrize(
    "name",
    [
        "FusedAdam",
        "FusedAdam L2",
        "DeepSpeedCPUAdam",
        "DeepSpeedCPUAdagrad",
        "FusedLion",
        "DeepSpeedCPULion",
    ],
)
def test_optimizers_of_ops_train_alike_at_every_stage(ranks: Ranks, name: str) -> None:
    job = "training.name_jobs:client_losses"
    blocks = [config(stage) for stage in (0, 2, 3)]
    blocks.append(config(2, zero={"offload_optimizer": {"device": "cpu"}}))
    curves = [
        ranks.run(job, settings={k: v for k, v in each.items() if k != "optimizer"}, name=name)[0]
        for each in blocks
    ]
    assert curves[0][-1] < curves[0][0]
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-5)


def test_a_path_of_deepspeed_is_one_module_under_both_names() -> None:
    import dsengine.ops.adam as there
    import dsengine.schedules as schedules

    import dsengine.deepspeed.ops.adam as here

    assert here is there
    assert schedules.WarmupLR is dsengine.schedules.WarmupLR
    spec = importlib.util.find_spec("dsengine.ops")
    assert spec is not None and spec.submodule_search_locations


def test_the_package_can_be_imported_anew() -> None:
    """In notebooks; and paths are found once, whoever imports how often."""
    program = (
        "import sys, importlib, dsengine\n"
        "finders = len(sys.meta_path)\n"
        "importlib.reload(dsengine)\n"
        "assert len(sys.meta_path) == finders\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'dsengine']:\n"
        "    del sys.modules[name]\n"
        "import dsengine.ops.adam\n"
        "assert len(sys.meta_path) == finders\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


# What programs write, ask and count


@pytest.mark.engine
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_written_is_what_is_read(ranks: Ranks, name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path) | {"gradient_accumulation_steps": 1}
    for told in ranks.run("training.name_jobs:written", settings=settings):
        assert [key for key, is_so in told.items() if not is_so] == []


@pytest.mark.engine
@pytest.mark.parametrize("threshold", [0, 10**6], ids=["divided", "whole at stage 3"])
def test_weights_of_stage_3_answer_inside_of_forward(ranks: Ranks, threshold: int) -> None:
    zero = {"stage3_param_persistence_threshold": threshold}
    expected = ranks.run("training.name_jobs:asked", settings=config(3, zero=zero))
    for told in expected:
        assert told["said"] and told["ids"]
        assert told["losses"][1] < told["losses"][0]


@pytest.mark.engine
@pytest.mark.parametrize(("managed", "expected"), [(True, [0, 16]), (False, [8, 32])])
def test_samples_are_those_that_were_trained_on(
    ranks: Ranks, managed: bool, expected: list[int]
) -> None:
    """Two ranks of micro batches of 4; a managed window of 2 ends with the second step."""
    settings = config(2, 2, managed_gradient_accumulation=managed)
    assert ranks.run("training.name_jobs:counted", settings=settings) == [expected] * 2


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = dsengine.schedules.WarmupLR(optimizer, warmup_max_lr=0.25, warmup_num_steps=2)
    for _ in range(4):
        schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25


@pytest.mark.parametrize("splits", [(1, 1), (2, 3), (5, 4)])
def test_a_linear_in_tiles_is_the_linear(splits: tuple[int, int]) -> None:
    from dsengine.zero import TiledLinear

    plain = nn.Linear(7, 9)
    into, out = splits
    tiled = TiledLinear(7, 9, in_splits=into, out_splits=out, init_linear=plain)
    inputs = torch.randn(3, 7)
    torch.testing.assert_close(tiled(inputs), plain(inputs))
    with pytest.raises(RuntimeError, match="in_splits is 8"):
        TiledLinear(7, 9, in_splits=8)


def test_leaf_modules_are_marked_by_name_and_unmarked() -> None:
    from dsengine import utils

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert utils.set_z3_leaf_modules_by_name(model, ["0", "5"], raise_if_not_found=False) == (
        [model[0]],
        ["5"],
    )
    assert utils.set_z3_leaf_modules_by_suffix(model, ["2"]) == ([model[2]], [])
    assert utils.get_z3_leaf_modules(model) == [model[0], model[2]]
    assert utils.z3_leaf_module(model[0]) and model[0]._z3_leaf
    utils.unset_z3_leaf_modules(model, [nn.Linear])
    assert utils.get_z3_leaf_modules(model) == []
    with pytest.raises(ValueError, match="'5'"):
        utils.set_z3_leaf_modules_by_name(model, ["5"])


def test_timers_sum_up_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    from dsengine.utils.timer import SynchronizedWallClockTimer

    timers = SynchronizedWallClockTimer()
    for _ in range(2):
        timers("forward").start()
        timers("forward").stop(record=True)
    assert timers("forward").mean() > 0 and timers("forward").elapsed(reset=False) > 0
    timers.log(["forward", "unknown"])
    assert re.search(r"forward: \d+\.\d\d", capsys.readouterr().out)
    assert timers("forward").elapsed() == 0
    with pytest.raises(RuntimeError, match="'other' was not started"):
        timers("other").stop()


def test_arguments_of_schedules_are_added() -> None:
    import argparse

    from dsengine.runtime.lr_schedules import WARMUP_NUM_STEPS, add_tuning_arguments

    chosen = add_tuning_arguments(argparse.ArgumentParser()).parse_args(["--warmup_num_steps", "7"])
    assert vars(chosen)[WARMUP_NUM_STEPS] == 7 and chosen.lr_schedule is None


def test_experts_on_ranks_of_their_own_are_refused() -> None:
    from dsengine.utils import groups

    groups.initialize()
    with pytest.raises(ValueError, match="stage 3"):
        groups.initialize(ep_size=2)


def test_parts_are_balanced() -> None:
    from dsengine.runtime.utils import partition_balanced, partition_uniform, prefix_sum_inc

    assert prefix_sum_inc([3, 4, 5]) == [3, 7, 12]
    assert partition_uniform(7, 3) == [0, 3, 5, 7]
    assert partition_uniform(2, 3) == partition_balanced([9, 1], 3) == [0, 1, 2, 2]
    assert partition_balanced([0, 1, 2, 3, 3, 3], 4) == [0, 3, 4, 5, 6]
    assert partition_balanced([4, 1, 1, 1, 5], 3) == [0, 1, 4, 5]


def test_blocks_of_a_config_are_objects() -> None:
    from dsengine.runtime.precision_config import DeepSpeedFP16Config, get_bfloat16_config
    from dsengine.runtime.zero import config as blocks
    from pydantic import ValidationError

    zero = blocks.DeepSpeedZeroConfig(stage=3, cpu_offload=True, stage3_max_reuse_distance=7)
    assert zero.stage is blocks.ZeroStageEnum.weights and zero.overlap_comm is True
    assert zero.max_reuse_distance == 7 and zero.offload_param is None
    assert blocks.DeepSpeedZeroConfig(offload_param=None).offload_param is None
    assert isinstance(zero.offload_optimizer, blocks.DeepSpeedZeroOffloadOptimizerConfig)
    assert zero.offload_optimizer.device == "cpu" and not zero.offload_optimizer.pipeline
    assert blocks.DeepSpeedZeroConfig(stage="2").overlap_comm is False
    assert any(each.endswith("MixtralSparseMoeBlock") for each in zero.leaf_module.classes)
    leaf = blocks.DeepSpeedZeroConfig(leaf_module={"classes": "a.B", "names": ["c"]}).leaf_module
    assert (leaf.classes, leaf.names, leaf.name_suffixes) == (["a.B"], ["c"], [])
    assert blocks.DeepSpeedZeroOffloadOptimizerConfig(pipeline_write=True, ratio=0.3).pipeline
    assert get_bfloat16_config({"bfloat16": {"enabled": True}}).enabled
    assert DeepSpeedFP16Config(enabled=False, min_loss_scale=-1).min_loss_scale == -1
    for wrong in ({"loss_scale": -1}, {"enabled": True, "min_loss_scale": 0}, {"scale": 1}):
        with pytest.raises(ValidationError):
            DeepSpeedFP16Config(**wrong)


def test_a_block_logs_the_keys_that_are_on_their_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dsengine.runtime.zero.config import DeepSpeedZeroConfig

    DeepSpeedZeroConfig(stage=3, overlap_comm=True)
    assert capsys.readouterr().out == ""
    DeepSpeedZeroConfig(stage=3, elastic_checkpoint=True)
    assert "elastic checkpointing is deprecated" in capsys.readouterr().out


def test_one_cycle_tells_the_betas_of_each_group() -> None:
    from dsengine.runtime.lr_schedules import OneCycle

    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    schedule = OneCycle(optimizer, 0.1, 0.2, cycle_first_step_size=2, cycle_max_mom=0.95)
    assert schedule.get_mom() == [(0.95, 0.99)]
    schedule.step()
    assert optimizer.param_groups[0]["betas"] == schedule.get_mom()[0]


@pytest.mark.parametrize(("fall", "share"), [(None, 0.5), (6, 0.25), (0, 1.0)])
def test_one_cycle_tells_the_share_in_which_it_rises(fall: int | None, share: float) -> None:
    from dsengine.runtime.lr_schedules import OneCycle

    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    schedule = OneCycle(optimizer, 0.1, 0.2, cycle_first_step_size=2, cycle_second_step_size=fall)
    assert schedule.step_ratio == share
    schedule.step()
    assert schedule.get_lr() == [pytest.approx(0.15)]


def test_a_level_is_given_by_name() -> None:
    import logging

    from dsengine.utils import logger, set_log_level_from_string

    before = logger.level
    set_log_level_from_string("error")
    assert logger.getEffectiveLevel() == logging.ERROR
    with pytest.raises(ValueError, match="loud"):
        set_log_level_from_string("loud")
    set_log_level_from_string("info")
    assert logger.level == before


def test_zero_is_one_room_under_both_names() -> None:
    from dsengine.deepspeed import zero
    from dsengine.deepspeed.runtime import zero as of_runtime

    names = of_runtime.__all__
    assert {n: getattr(zero, n) for n in names} == {n: getattr(of_runtime, n) for n in names}
    assert zero.tiling.TiledLinear is zero.TiledLinear
