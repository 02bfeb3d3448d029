"""Names that scripts import from deepspeed: provided or refused."""

import importlib.util
import logging
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, cast

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
import forked_python
from dsconfig.features.deepspeed_names import NAMES
from dsengine.observation.printing import script_logger
from dsengine.optimizers.binding import is_elementwise
from dsengine.optimizers.lion import Lion
from training.jobs import config
from training.ranks import Ranks

ROOT = Path(__file__).parents[2]


def check_script(code: str) -> None:
    """Run code in a process that has not imported dsengine."""
    done = forked_python.run("-c", code, environment=os.environ, folder=ROOT)
    assert done.returncode == 0, done.stderr


# Provided names


def documented() -> list[tuple[str, str]]:
    """Return (module, name) of every import listed in docs/internals/engine.md."""
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


def test_submodules_are_reachable_from_the_package() -> None:
    code = (
        "import dsengine as deepspeed; deepspeed.ops.adam.FusedAdam; deepspeed.zero.Init; "
        "deepspeed.runtime.zero.partition_parameters.ZeroParamStatus.NOT_AVAILABLE; "
        "deepspeed.runtime.lr_schedules.WarmupLR; deepspeed.utils.zero_to_fp32; "
        "deepspeed.utils.groups; deepspeed.accelerator.get_accelerator; deepspeed.get_accelerator"
    )
    check_script(code)


def test_version_compares_as_deepspeed_release() -> None:
    from packaging.version import Version

    version = Version(dsengine.__version__)
    assert Version("0.19.8") <= version < Version("0.19.9")
    assert version.local is not None and version.local.startswith("dsengine")


# Refused names


@pytest.mark.parametrize("name", NAMES)
def test_refused_import_names_an_alternative(name: str) -> None:
    words = f"does not implement deepspeed.{name}".replace(".", r"\.")
    above, _, leaf = f"dsengine.{name}".rpartition(".")
    with pytest.raises((ImportError, AttributeError), match=words) as refused:
        if leaf.startswith("_"):  # an attribute, not a module
            getattr(importlib.import_module(above), leaf)
        else:
            importlib.import_module(f"dsengine.{name}.anything")
    assert NAMES[name] in str(refused.value)


def test_refused_name_raises_the_same_message_everywhere() -> None:
    with pytest.raises(ImportError, match="with expert_parallel"):
        from dsengine.moe.layer import MoE  # noqa: F401
    with pytest.raises(ImportError, match="1F1B"):
        from dsengine import DualPipeVModule  # noqa: F401
    with pytest.raises(AttributeError, match=r"generate\(\)"):
        dsengine.init_inference()
    assert not hasattr(dsengine, "init_inference")


def test_refused_name_in_a_script_raises() -> None:
    lines, expected = ["import dsengine.as_deepspeed, traceback"], []
    for attempt in (
        "deepspeed.comm.TorchBackend",
        "deepspeed.runtime.domino",
        "deepspeed.ops.transformer",
    ):
        above, _, leaf = attempt.rpartition(".")
        for code, error in (
            (f"import deepspeed; {attempt}", "AttributeError"),
            (f"from {above} import {leaf}", "ImportError"),
        ):
            lines += ["try:", f"    {code}", "except Exception:", "    traceback.print_exc()"]
            expected.append(f"{error}: dsengine does not implement {attempt}: ")
    script = "\n".join(lines)
    done = forked_python.run("-c", script, environment=os.environ)
    assert [text for text in expected if text not in done.stderr] == []


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
def test_ops_optimizer_equals_torch(
    kind: Any, options: dict[str, Any], like: Any, plain: dict[str, Any]
) -> None:
    ours, reference = stepped(kind, **COMMON, **options), stepped(like, **COMMON, **plain)
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, FusedLion])
def test_ops_optimizers_have_no_weight_decay_by_default(kind: Any) -> None:
    torch.testing.assert_close(stepped(kind), stepped(kind, weight_decay=0.0), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "option", "words"),
    [
        (FusedAdam, {"amsgrad": True}, "amsgrad"),
        (DeepSpeedCPUAdam, {"amsgrad": True}, "amsgrad"),
        (DeepSpeedCPUAdagrad, {"amsgrad": True}, "amsgrad"),
    ],
)
def test_unsupported_optimizer_option_is_refused(
    kind: Any, option: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kind([nn.Parameter(torch.zeros(1))], **option)


@pytest.mark.parametrize("kind", [DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, DeepSpeedCPULion])
def test_16_bit_weights_have_fp32_states_by_default(kind: Any) -> None:
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
            reference.data.copy_(reference.bfloat16())  # round weights after each step
            assert weight.data.data_ptr() == at_first.data_ptr()
            assert weight.grad.dtype is weight.dtype is torch.bfloat16
        states = [s for s in narrow.state[weight].values() if s.numel() > 1]
        assert {each.dtype for each in states} == {torch.float32 if wide else torch.bfloat16}
        assert not wide or torch.equal(weight.float(), reference)


@pytest.mark.parametrize("kind", [FusedAdam, FusedLion])
def test_set_grad_none_controls_zero_grad(kind: Any) -> None:
    for set_grad_none, left in ((True, None), (False, [0.0, 0.0])):
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        kind([weight], set_grad_none=set_grad_none).zero_grad()
        assert (None if weight.grad is None else weight.grad.tolist()) == left


class Renamed(torch.optim.AdamW):
    """Different defaults, the same update."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.5)


class Changed(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_subclass_with_same_update_is_elementwise() -> None:
    parameter = [nn.Parameter(torch.zeros(1))]
    kinds = [Renamed, FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, FusedLion]
    for kind in kinds:
        assert is_elementwise(kind)
        kind(parameter)  # torch wraps ``step`` of the class on first use
        assert is_elementwise(kind)
    assert not is_elementwise(Changed)


def test_changed_update_is_not_elementwise() -> None:
    code = (
        "import torch; from dsengine.optimizers.binding import is_elementwise\n"
        "class Changed(torch.optim.AdamW):\n    def step(self): ...\n"
        "assert not is_elementwise(Changed) and is_elementwise(torch.optim.AdamW)"
    )
    check_script(code)
    assert not is_elementwise(torch.optim.Adafactor)


# Devices, logging, helpers


def test_compatible_ops_lists_available_kernels() -> None:
    from dsengine.ops import __compatible_ops__
    from dsengine.ops.aio import AsyncIOBuilder
    from dsengine.ops.op_builder import ALL_OPS, CPUAdamBuilder, FusedLambBuilder

    assert __compatible_ops__[CPUAdamBuilder.NAME] and CPUAdamBuilder().is_compatible()
    assert __compatible_ops__[AsyncIOBuilder.NAME]
    assert not __compatible_ops__["fused_lamb"] and not FusedLambBuilder().is_compatible()
    assert set(__compatible_ops__) == set(ALL_OPS)
    with pytest.raises(NotImplementedError, match="fused_lamb: there are no kernels"):
        FusedLambBuilder().load()


def test_on_device_sets_device_and_dtype() -> None:
    with dsengine.OnDevice(dtype=torch.bfloat16, device="meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        positions = torch.arange(4)
        assert torch.zeros(2, requires_grad=True).is_leaf
    assert {(each.device.type, each.dtype) for each in model.parameters()} == {
        ("meta", torch.bfloat16)
    }
    assert positions.device.type == "cpu"  # as in DeepSpeed
    with dsengine.OnDevice(dtype=torch.bfloat16, device="meta", enabled=False):
        assert nn.Linear(2, 2).weight.dtype is torch.float32
    assert nn.Linear(2, 2).weight.device.type == "cpu"


def test_git_version_info_describes_this_build() -> None:
    from dsengine.git_version_info import compatible_ops, installed_ops, torch_info, version

    assert version == dsengine.__version__ and compatible_ops["cpu_adam"]
    parts = (dsengine.__version_major__, dsengine.__version_minor__, dsengine.__version_patch__)
    assert version.startswith("{}.{}.{}+".format(*parts))
    assert dsengine.__git_hash__ is dsengine.__git_branch__ is None
    assert not any(installed_ops.values()) and torch.__version__.startswith(torch_info["version"])
    assert all(torch_info[f"{each}_version"].count(".") for each in ("cuda", "nccl", "hip"))


def test_required_torch_version_checks_bounds() -> None:
    from dsengine.utils.torch import required_torch_version

    assert required_torch_version(min_version=2.1) and required_torch_version("2.11", "99")
    assert not required_torch_version(max_version=2.1)
    with pytest.raises(ValueError, match="min_version or max_version"):
        required_torch_version()


def test_groups_without_expert_parallelism_are_unchanged() -> None:
    from dsengine.moe.utils import (
        is_moe_param,
        split_params_into_different_moe_groups_for_optimizer,
    )

    weight = nn.Parameter(torch.zeros(2))
    group = {"params": [weight], "name": "all"}
    assert split_params_into_different_moe_groups_for_optimizer(group) == [group]
    cast(Any, weight).allreduce = False  # DeepSpeed's marker
    assert is_moe_param(weight)
    with pytest.raises(NotImplementedError, match="MoE layers are not supported"):
        split_params_into_different_moe_groups_for_optimizer([group])


def test_accelerator_is_the_engine_device() -> None:
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


def test_accelerator_seed_applies_to_its_device() -> None:
    device = get_accelerator()
    numbers = []
    for _ in range(2):
        device.manual_seed_all(5)
        numbers.append(torch.rand(3, device=device.device_name()).tolist())
    assert numbers[0] == numbers[1]


def test_cuda_accelerator_names_devices_by_index() -> None:
    assert Accelerator().device_name() == "cuda"
    assert Accelerator().device_name(1) == "cuda:1"
    assert Accelerator().max_memory_allocated == torch.cuda.max_memory_allocated
    assert Accelerator().communication_backend_name() == "nccl"


def test_log_dist_prints_without_process_group(capsys: pytest.CaptureFixture[str]) -> None:
    log_dist("a message", ranks=[0])
    print_dist("another", ranks=[3])
    logger.warning("a third")
    log_dist("too small to tell", level=logging.DEBUG)
    output = capsys.readouterr().out
    assert re.search(r"\[INFO\] \[Rank -1\] a message\n", output)
    assert "[Rank -1] another\n" in output and "[WARNING] a third\n" in output
    assert "too small" not in output


def test_see_memory_usage_prints_only_with_force(capsys: pytest.CaptureFixture[str]) -> None:
    see_memory_usage("before")
    assert capsys.readouterr().out == ""
    see_memory_usage("before", force=True)
    output = capsys.readouterr().out
    assert output.startswith("before\n") and re.search(r"MA 0\.\d\d GiB Max_MA", output)


def test_recursive_getattr_and_setattr() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3)), nn.ReLU())
    assert recursive_getattr(model, "0.0.weight").shape == (3, 2)
    replacement = nn.Linear(2, 5)
    recursive_setattr(model, "0.0", replacement)
    recursive_setattr(model, "1", replacement)
    assert model.get_submodule("0.0") is replacement and model[1] is replacement


def test_cloned_views_have_their_own_storage(tmp_path: Path) -> None:
    view = torch.zeros(1000)[:2]
    cloned = clone_tensors_for_torch_save({"a": [view, 3], "b": (view,)})
    assert cloned["a"][1] == 3 and torch.equal(cloned["b"][0], view)
    assert cloned["a"][0].untyped_storage().nbytes() == 8
    assert view.untyped_storage().nbytes() == 4000


def test_model_profile_counts_multiply_adds() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    counted = get_model_profile(model, (2, 8), print_profile=False, as_string=False)
    multiply_adds = 2 * (8 * 16 + 16 * 4)
    assert counted == (2 * multiply_adds, multiply_adds, 8 * 16 + 16 + 16 * 4 + 4)
    assert model.training
    words = get_model_profile(model, args=[torch.zeros(2, 8)], print_profile=False)
    assert words == ("768", "384", "212")


def test_model_profile_writes_output_file(tmp_path: Path) -> None:
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


def test_exclude_frozen_parameters_is_refused_when_reading() -> None:
    with pytest.raises(ValueError, match="save_checkpoint"):
        get_fp32_state_dict_from_zero_checkpoint("anywhere", exclude_frozen_parameters=True)


# With ranks


@pytest.mark.engine
@pytest.mark.parametrize("stage", [2, 3])
def test_partitioned_parameters_have_ds_attributes(ranks: Ranks, stage: int) -> None:
    settings = config(stage, zero={"stage3_param_persistence_threshold": 0})
    for result in ranks.run("training.deepspeed_api_jobs:ds_attributes", settings=settings):
        (rows, columns), elements, _ = result["built"]
        assert elements == rows * columns
        assert result["no status"] and result["ids"] and result["shapes"]
        if stage == 3:
            assert result["sharded"] > 5
            assert result["before"] and result["inside"] and result["after"]
        else:
            assert result["sharded"] == 0 and result["plain"] > 5


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
def test_full_states_agree_across_stages(ranks: Ranks, name: str, tmp_path: Path) -> None:
    job, reference = "training.deepspeed_api_jobs:full_states", config(0, 2)
    expected = ranks.once(job, settings=reference)[0]
    assert len(expected["masters"]) > 5
    for result in ranks.run(job, settings=settings_of(name, tmp_path)):
        for kind in ("masters", "moments"):
            for key, values in expected[kind].items():
                assert result[kind][key] == pytest.approx(values, rel=1e-4, abs=1e-7), (kind, key)
        for key, values in expected["gradients"][-1].items():
            assert result["gradients"][-1][key] == pytest.approx(values, rel=1e-4, abs=1e-7), key
        assert not any(each is None for each in result["gradients"][0].values())
        assert result["left"] == [None] * len(result["left"])
        assert result["stranger"] is None


@pytest.mark.engine
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_unreduced_gradients_are_local(ranks: Ranks, stage: int, bf16: bool) -> None:
    settings = config(stage, 4, bf16={"enabled": bf16})
    for result in ranks.run("training.deepspeed_api_jobs:unreduced", settings=settings):
        assert result == dict.fromkeys(result, True)


@pytest.mark.engine
def test_hooks_are_removed_for_generation(ranks: Ranks) -> None:
    result = ranks.run("training.deepspeed_api_jobs:unwrapped", settings=config(3))
    assert result == [[(True, False), (False, True), (True, False)]] * 2


@pytest.mark.engine
@pytest.mark.parametrize("checks", [False, True])
def test_sanity_checks_refuse_discarded_writes(ranks: Ranks, checks: bool) -> None:
    zero = {"enable_sanity_checks": checks, "stage3_param_persistence_threshold": 300}
    both = ranks.run("training.deepspeed_api_jobs:discarded_writes", settings=config(3, zero=zero))
    assert [result.pop("failed") for result in both] == ["of this rank alone", ""]
    for result in both:
        for refused in ("built", "sharded", "assigned", "plain"):
            assert ("in-place modification" in result[refused]) is checks, refused
        assert result["read"] == result["kept"] == ""
        assert result["same"] and result["persist"] == [False, True]


@pytest.mark.engine
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_single_process_reads_full_checkpoint(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    job, settings = (
        "training.deepspeed_api_jobs:full_weights",
        config(stage, bf16={"enabled": True}),
    )
    result = ranks.run(job, settings=settings, folder=str(tmp_path))[0]
    assert result == {"equal": True, "fp32": True, "loaded": True, "tied": True}


needs_zeros = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="torch before 2.13"
)


@needs_zeros
@pytest.mark.engine
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_can_use_different_experts(
    ranks: Ranks, stage: int, accumulation: int, marked: bool
) -> None:
    job, steps = "training.deepspeed_api_jobs:routed", {"gradient_accumulation_steps": accumulation}
    reference = ranks.once(job, settings=config(0, **steps), marked=marked)
    sharded = ranks.run(job, settings=config(stage, **steps), marked=marked)
    for (leaves, curve), (_, expected) in zip(sharded, reference, strict=True):
        assert leaves == (2 if marked else 0)
        assert curve == pytest.approx(expected, rel=1e-5)


@needs_zeros
@pytest.mark.engine
@pytest.mark.parametrize("named", [["Experts"], ["Routed"]])
@pytest.mark.parametrize("stage", [2, 3])
def test_leaf_outside_blocks_is_one_unit(ranks: Ranks, stage: int, named: list[str]) -> None:
    """A module that is not a repeated block, and the full model."""
    job, zero = "training.deepspeed_api_jobs:routed", {"leaf_module": {"classes": named}}
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
def test_optimizer_is_instance_of_deepspeed_class(
    ranks: Ranks, stage: int, name: str, precision: str, kinds: list[str]
) -> None:
    offload = {"offload_optimizer": {"device": "cpu"}} if stage == 3 else {}
    settings = config(stage, zero=offload)
    if precision != "fp32":
        settings[precision] = {"enabled": True}
    settings["optimizer"] = {"type": name, "params": {"lr": 1e-3}}
    result = ranks.run("training.deepspeed_api_jobs:optimizer_classes", settings=settings)[0]
    assert result == kinds


def test_memory_estimates_equal_compat_tables(
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


def test_config_model_accepts_deprecated_names(caplog: pytest.LogCaptureFixture) -> None:
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


def test_trim_mean_drops_both_ends() -> None:
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
def test_optimizer_has_overflow_and_scale(ranks: Ranks) -> None:
    fp16 = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}
    job = "training.deepspeed_api_jobs:optimizer_attributes"
    rows = ranks.run(job, settings=config(1, fp16=fp16))[0]
    assert rows == [(False, 256, 256), (False, 256, 256), (True, 128, 128), (False, 128, 128)]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("stage", "name"),
    [(2, "single_partition_of_fp32_groups"), (3, "fp32_partitioned_groups_flat")],
)
def test_optimizer_has_master_views(ranks: Ranks, stage: int, name: str) -> None:
    settings = config(stage, bf16={"enabled": True})
    result = ranks.run("training.deepspeed_api_jobs:master_views", settings=settings, name=name)
    assert {str(each[0]) for each in result} == {"{'torch.float32'}"}
    assert result[0][1] + result[1][1] == result[0][2]


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
def test_ops_optimizers_agree_across_stages(ranks: Ranks, name: str) -> None:
    job = "training.deepspeed_api_jobs:client_losses"
    blocks = [config(stage) for stage in (0, 2, 3)]
    blocks.append(config(2, zero={"offload_optimizer": {"device": "cpu"}}))
    curves = [
        ranks.run(job, settings={k: v for k, v in each.items() if k != "optimizer"}, name=name)[0]
        for each in blocks
    ]
    assert curves[0][-1] < curves[0][0]
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-5)


def test_module_is_the_same_under_both_names() -> None:
    import dsengine.deepspeed.ops.adam as here
    import dsengine.ops.adam as there
    import dsengine.schedules as schedules

    assert here is there
    assert schedules.WarmupLR is dsengine.schedules.WarmupLR
    spec = importlib.util.find_spec("dsengine.ops")
    assert spec is not None and spec.submodule_search_locations


def test_package_can_be_reloaded() -> None:
    """For notebooks; import finders are installed once."""
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
    check_script(program)


# Writes, attributes and counters


@pytest.mark.engine
@pytest.mark.parametrize("name", SETTINGS)
def test_written_states_are_read_back(ranks: Ranks, name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path) | {"gradient_accumulation_steps": 1}
    for result in ranks.run("training.deepspeed_api_jobs:written", settings=settings):
        assert [key for key, is_so in result.items() if not is_so] == []


@pytest.mark.engine
@pytest.mark.parametrize("threshold", [0, 10**6], ids=["sharded", "unsharded at stage 3"])
def test_stage_3_weights_have_ds_attributes_in_forward(ranks: Ranks, threshold: int) -> None:
    zero = {"stage3_param_persistence_threshold": threshold}
    expected = ranks.run(
        "training.deepspeed_api_jobs:attributes_in_forward", settings=config(3, zero=zero)
    )
    for result in expected:
        assert result["status"] and result["ids"]
        assert result["losses"][1] < result["losses"][0]


@pytest.mark.engine
@pytest.mark.parametrize(("managed", "expected"), [(True, [0, 16]), (False, [8, 32])])
def test_global_samples_counts_trained_samples(
    ranks: Ranks, managed: bool, expected: list[int]
) -> None:
    """Two ranks with micro batches of 4; a managed window of 2 ends with the second step."""
    settings = config(2, 2, managed_gradient_accumulation=managed)
    assert (
        ranks.run("training.deepspeed_api_jobs:global_samples_of_steps", settings=settings)
        == [expected] * 2
    )


def test_tensor_learning_rate_is_updated_in_place() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = dsengine.schedules.WarmupLR(optimizer, warmup_max_lr=0.25, warmup_num_steps=2)
    for _ in range(4):
        schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25


@pytest.mark.parametrize("splits", [(1, 1), (2, 3), (5, 4)])
def test_tiled_linear_equals_linear(splits: tuple[int, int]) -> None:
    from dsengine.zero import TiledLinear

    plain = nn.Linear(7, 9)
    into, out = splits
    tiled = TiledLinear(7, 9, in_splits=into, out_splits=out, init_linear=plain)
    inputs = torch.randn(3, 7)
    torch.testing.assert_close(tiled(inputs), plain(inputs))
    with pytest.raises(RuntimeError, match="in_splits is 8"):
        TiledLinear(7, 9, in_splits=8)


def test_leaf_modules_are_set_and_unset_by_name() -> None:
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


def test_timers_accumulate_by_name(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_add_tuning_arguments_adds_schedule_arguments() -> None:
    import argparse

    from dsengine.runtime.lr_schedules import WARMUP_NUM_STEPS, add_tuning_arguments

    chosen = add_tuning_arguments(argparse.ArgumentParser()).parse_args(["--warmup_num_steps", "7"])
    assert vars(chosen)[WARMUP_NUM_STEPS] == 7 and chosen.lr_schedule is None


def test_expert_parallel_groups_are_refused() -> None:
    from dsengine.utils import groups

    groups.initialize()
    with pytest.raises(ValueError, match="with expert_parallel"):
        groups.initialize(ep_size=2)


def test_partition_balanced() -> None:
    from dsengine.runtime.utils import partition_balanced, partition_uniform, prefix_sum_inc

    assert prefix_sum_inc([3, 4, 5]) == [3, 7, 12]
    assert partition_uniform(7, 3) == [0, 3, 5, 7]
    assert partition_uniform(2, 3) == partition_balanced([9, 1], 3) == [0, 1, 2, 2]
    assert partition_balanced([0, 1, 2, 3, 3, 3], 4) == [0, 3, 4, 5, 6]
    assert partition_balanced([4, 1, 1, 1, 5], 3) == [0, 1, 4, 5]


def test_config_blocks_are_objects() -> None:
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


def test_config_block_logs_deprecated_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dsengine.runtime.zero.config import DeepSpeedZeroConfig

    DeepSpeedZeroConfig(stage=3, overlap_comm=True)
    assert capsys.readouterr().out == ""
    DeepSpeedZeroConfig(stage=3, elastic_checkpoint=True)
    assert 'zero_optimization.elastic_checkpoint" is deprecated' in capsys.readouterr().out


def test_one_cycle_returns_betas_of_each_group() -> None:
    from dsengine.runtime.lr_schedules import OneCycle

    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    schedule = OneCycle(optimizer, 0.1, 0.2, cycle_first_step_size=2, cycle_max_mom=0.95)
    assert schedule.get_mom() == [(0.95, 0.99)]
    schedule.step()
    assert optimizer.param_groups[0]["betas"] == schedule.get_mom()[0]


@pytest.mark.parametrize(("fall", "share"), [(None, 0.5), (6, 0.25), (0, 1.0)])
def test_one_cycle_step_ratio(fall: int | None, share: float) -> None:
    from dsengine.runtime.lr_schedules import OneCycle

    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    schedule = OneCycle(optimizer, 0.1, 0.2, cycle_first_step_size=2, cycle_second_step_size=fall)
    assert schedule.step_ratio == share
    schedule.step()
    assert schedule.get_lr() == [pytest.approx(0.15)]


def test_log_level_is_set_by_name() -> None:
    import logging

    from dsengine.utils import logger, set_log_level_from_string

    before = logger.level
    set_log_level_from_string("error")
    assert logger.getEffectiveLevel() == logging.ERROR
    with pytest.raises(ValueError, match="loud"):
        set_log_level_from_string("loud")
    set_log_level_from_string("info")
    assert logger.level == before


def test_zero_has_the_same_names_in_both_packages() -> None:
    from dsengine import zero

    assert zero is import_module("dsengine.deepspeed.runtime.zero")
    assert zero.tiling.TiledLinear is zero.TiledLinear
