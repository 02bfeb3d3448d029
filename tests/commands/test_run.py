"""``dsconfig plan -o`` and ``dsconfig run``: each rank executes the same plan."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import command_line
from dsconfig import Plan
from suite.limits import scaled

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 2},
}
PRINTS = """
import os, dsengine
from torch import nn
engine, *_ = dsengine.initialize(model=nn.Linear(4, 4))
plan = engine.plan
if engine.global_rank == 0:
    print("executes", plan.release, plan.effective.gradients.clipping, plan.mesh.world_size)
    print("names", os.path.basename(os.environ["DSCONFIG_PLAN"]))
"""


def dsconfig(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dsconfig", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def plan(tmp_path: Path, config: Path) -> Path:
    path = tmp_path / "plan.json"
    flags = ("--gpus", 2, "--deepspeed-version", "0.16.4", "-o", path)
    made = command_line.run("plan", config, *flags)
    assert made.returncode == 0, made.stderr
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PRINTS)
    return path


def test_plan_file_round_trips(plan: Path) -> None:
    made = Plan.from_json(plan.read_text())
    assert (made.release, made.nodes, made.mesh.world_size, made.runtime) == (
        "0.16.4",
        1,
        2,
        "dsengine",
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gpus", 4), ("for 2 ranks", "flags specify 4", "plan again with --gpus 4")),
        (("--micro-batch", 4), ("--micro-batch", "already decided")),
        (("--set", "bf16.enabled=true"), ("--set", "already decided")),
        (("--model", "gpt2", "--seq-len", 128), ("--model, --seq-len", "plan again")),
    ],
)
def test_flags_that_contradict_a_plan_are_rejected(
    plan: Path, script: Path, flags: tuple[Any, ...], words: tuple[str, ...]
) -> None:
    result = command_line.run("run", plan, *flags, "--", script)
    assert result.returncode == 2
    for word in words:
        assert word in result.stderr


def test_modified_plan_is_not_run(plan: Path, script: Path) -> None:
    plan.write_text(plan.read_text().replace('"stage": 2', '"stage": 3'))
    result = command_line.run("run", plan, "--", script)
    assert result.returncode == 2
    assert "was edited or created by another release" in " ".join(result.stderr.split())


def test_unsupported_config_is_rejected_before_start(config: Path, script: Path) -> None:
    result = command_line.run("run", config, "--set", "amp.enabled=true", "--", script)
    assert result.returncode == 1
    assert "amp" in result.stdout + result.stderr
    assert "executes" not in result.stdout


@pytest.mark.engine
def test_ranks_execute_plan_file(plan: Path, script: Path) -> None:
    result = dsconfig("run", plan, "--", script)
    assert result.returncode == 0, result.stderr
    assert "executes 0.16.4 0.0 2" in result.stdout
    assert "names plan.json" in result.stdout


@pytest.mark.long
@pytest.mark.engine
def test_config_is_planned_once(config: Path, script: Path) -> None:
    result = dsconfig("run", config, "--gpus", 2, "--set", "gradient_clipping=0.5", "--", script)
    assert result.returncode == 0, result.stderr
    assert "0.5 2" in result.stdout


def test_plan_shows_plan_file(plan: Path, tmp_path: Path) -> None:
    shown = command_line.run("plan", plan, "--output-format", "json")
    assert Plan.from_json(shown.stdout) == Plan.from_json(plan.read_text())
    copy = tmp_path / "copy.json"
    people = command_line.run("plan", plan, "-o", copy)
    assert "2 on 1 node" in people.stdout and "DeepSpeed 0.16.4" in people.stdout
    assert copy.read_text() == plan.read_text()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--gpus", 4), "--gpus"),
        (("--set", "fp16.enabled=true"), "--set"),
        (("--tensor-parallel", 2), "already decided by the plan"),
        (("--deepspeed-version", "0.19.8"), "--deepspeed-version"),
    ],
)
def test_plan_rejects_flags_for_plan_file(
    plan: Path, flags: tuple[Any, ...], expected: str
) -> None:
    done = command_line.run("plan", plan, *flags)
    assert done.returncode == 2
    assert expected in done.stderr and "plan again" in done.stderr


def test_modified_plan_is_not_shown(plan: Path) -> None:
    plan.write_text(plan.read_text().replace('"nodes": 1', '"nodes": 2'))
    done = command_line.run("plan", plan)
    assert done.returncode == 2 and "was edited or created by another release" in " ".join(
        done.stderr.split()
    )


TRAINER = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
}
ARGUMENTS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "learning_rate": 3e-4,
    "bf16": True,
}


@pytest.mark.long
@pytest.mark.engine
def test_trainer_config_can_be_run(tmp_path: Path, script: Path) -> None:
    config, arguments = tmp_path / "z2.json", tmp_path / "args.json"
    config.write_text(json.dumps(TRAINER))
    arguments.write_text(json.dumps(ARGUMENTS))
    flags = ("--device", "cpu", "--training-args", arguments)
    done = dsconfig("run", config, *flags, "--", script)
    assert done.returncode == 0, done.stderr
    assert "executes 0.19.8 1.0 1" in done.stdout
    output = (
        "dsconfig run: stage 2, bf16, batch 8 = 2 micro x 4 accumulation x 1 ranks, AdamW at 0.0003"
    )
    assert output in done.stderr


WRITTEN_FOR_DEEPSPEED = """
import sys, deepspeed
from torch import nn
engine, *_ = deepspeed.initialize(model=nn.Linear(4, 4))
if engine.global_rank == 0:
    print("trains", deepspeed.__version__.partition("+")[2][:8], engine.world_size, sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.engine
def test_deepspeed_script_runs_unchanged(tmp_path: Path, config: Path) -> None:
    script = tmp_path / "theirs.py"
    script.write_text(WRITTEN_FOR_DEEPSPEED)
    done = dsconfig("run", config, "--gpus", 2, "--", script, "--lr", "1")
    assert "target: dsengine (default" in done.stderr
    assert "trains dsengine 2 ['--lr', '1']" in done.stdout, done.stdout + done.stderr
    for rank in range(2):
        assert done.stdout.count(f"[Rank {rank}] dsengine replaces deepspeed") == 1


ON_ITS_OWN = """
import sys
import torch
import deepspeed
from torch import nn
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
engine, *_ = deepspeed.initialize(model=nn.Linear(4, 4), config=sys.argv[1])
for _ in range(3 * engine.gradient_accumulation_steps()):
    engine.backward((engine(torch.zeros(2, 4)) - engine.module.bias).sum() + 5)
    engine.step()
    if sys.argv[2:] == ["fail"]:
        raise KeyError("of the script")
if engine.global_rank == 0:
    print("on", deepspeed.__file__.rpartition("/")[0].rpartition("/")[2], deepspeed.__version__,
          engine.world_size, engine.train_micro_batch_size_per_gpu(), engine.get_lr())
"""


class OnDeepSpeed:
    """Runs of a script on the DeepSpeed that is installed, on two ranks."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "auto.json"
        optimizer = {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}
        auto = {"train_micro_batch_size_per_gpu": "auto", "optimizer": optimizer}
        self.config.write_text(json.dumps(CONFIG | auto))
        self.script = folder / "theirs.py"
        self.script.write_text(ON_ITS_OWN)

    def __call__(self, *more: str, flags: tuple[str, ...] = ()) -> Any:
        facts = ("--micro-batch", 2, "--learning-rate", 1e-3, "--params", "1M", "--device", "cpu")
        how = ("--engine", "deepspeed", "--gpus", 2, *facts, *flags)
        return dsconfig("run", self.config, *how, "--", self.script, "{config}", *more)


@pytest.fixture
def on_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnDeepSpeed:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return OnDeepSpeed(tmp_path)


@pytest.mark.live
@pytest.mark.engine
def test_script_runs_on_deepspeed(on_deepspeed: OnDeepSpeed) -> None:
    done = on_deepspeed()
    assert done.returncode == 0, done.stderr
    assert "on deepspeed 0.19.8 2 2 [0.001]" in done.stdout
    output = " ".join(done.stderr.split())
    assert "batch 4 = 2 micro x 1 accumulation x 2 ranks, adamw at 0.001, requires" in output
    assert "step 1 loss 5.0000" in output
    assert "dsconfig run: 3 steps in" in output
    assert "resident on rank 0," in output and "of tensors" in output


@pytest.mark.live
@pytest.mark.engine
def test_deepspeed_step_loss_is_mean_of_window(on_deepspeed: OnDeepSpeed) -> None:
    done = on_deepspeed(flags=("--accumulation", "2"))
    output = " ".join(done.stderr.split())
    assert done.returncode == 0 and "step 1 loss 5.0000" in output, output


@pytest.mark.live
@pytest.mark.engine
def test_deepspeed_failure_names_cause(on_deepspeed: OnDeepSpeed) -> None:
    done = on_deepspeed("fail")
    assert done.returncode == 1
    assert "failed in the script: KeyError: 'of the script'" in " ".join(done.stderr.split())


@pytest.mark.live
def test_config_rejected_by_deepspeed_is_not_started(on_deepspeed: OnDeepSpeed) -> None:
    done = on_deepspeed(flags=("--set", "zero_optimization.stage=7"))
    assert done.returncode == 1
    assert "zero_optimization.stage is 7" in done.stdout and "on deep" not in done.stdout


@pytest.mark.live
def test_dsengine_plan_is_rejected_for_deepspeed(plan: Path, script: Path) -> None:
    done = dsconfig("run", plan, "--engine", "deepspeed", "--", script)
    assert done.returncode == 2
    assert "is a plan for dsengine, not deepspeed" in done.stderr


THREE_STEPS = """
import sys, dsengine, torch
from torch import nn
engine, *_ = dsengine.initialize(model=nn.Linear(4, 4))
for step in range(3):
    if step == 2 and engine.global_rank == 1 and sys.argv[1:] == ["fail"]:
        engine(torch.randn(1, 5))
    loss = engine(torch.randn(1, 4)).sum()
    engine.backward(loss)
    engine.step()
engine.save_checkpoint("out")
"""


@pytest.mark.long
@pytest.mark.engine
def test_run_shows_steps_checkpoint_and_memory(tmp_path: Path, config: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(THREE_STEPS.replace('"out"', repr(str(tmp_path / "out"))))
    done = dsconfig("run", config, "--gpus", 2, "--device", "cpu", "--", script)
    assert done.returncode == 0, done.stderr
    output = " ".join(done.stderr.split())
    assert "dsconfig run: step 1 loss " in output and "lr 1.00e-03" in output
    assert (
        "3 steps in" in output
        and "at step 3; peak" in output
        and "resident on rank 0 (no estimate: --model not specified)" in output
    )
    assert str(tmp_path / "out" / "global_step3") in output


@pytest.mark.engine
def test_failure_names_rank_phase_and_cause(tmp_path: Path, config: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(THREE_STEPS)
    done = dsconfig("run", config, "--gpus", 2, "--device", "cpu", "--", script, "fail")
    assert done.returncode == 1
    output = " ".join(done.stderr.split())
    assert "rank 1 failed in forward() of step 3: RuntimeError: " in output
    assert "[rank0]" not in output and "torch/distributed/elastic" not in output
    log = Path(output.partition("including the launcher: ")[2].partition(" ")[0])
    assert "exitcode" in log.read_text()
    log.unlink()


@pytest.mark.long
@pytest.mark.engine
def test_slow_failing_rank_is_still_the_cause(tmp_path: Path, config: Path) -> None:
    """The launcher stops it with SIGTERM while it is shutting down."""
    script = tmp_path / "steps.py"
    lingers = (
        "import atexit, os, time\nif os.environ['RANK'] == '1': atexit.register(time.sleep, 60)\n"
    )
    script.write_text(lingers + THREE_STEPS)
    done = dsconfig("run", config, "--gpus", 2, "--device", "cpu", "--", script, "fail")
    assert done.returncode == 1, done.stderr
    assert "rank 1 failed in forward() of step 3: RuntimeError: " in " ".join(done.stderr.split())
