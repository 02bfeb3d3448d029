"""dsengine imported as deepspeed, directly and around a script or module."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dsengine
import forked_python

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "RANK"}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "engine")])}


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment())


def python_with_torch(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that imports torch anyway."""
    return forked_python.run(*arguments, environment=environment())


def stdout_of(code: str, with_torch: bool = False) -> str:
    done = (python_with_torch if with_torch else python)("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_deepspeed_modules_are_dsengine_modules() -> None:
    code = """
import sys
import dsengine.as_deepspeed
import deepspeed
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
import deepspeed.utils.groups, deepspeed.comm, deepspeed.runtime.lr_schedules, deepspeed.loop.engine
import dsengine, dsengine.ops.adam, dsengine.loop.engine
assert deepspeed is dsengine and deepspeed.zero is dsengine.zero
assert dsengine.ops.adam is deepspeed.ops.adam is sys.modules["deepspeed.ops.adam"]
assert deepspeed.loop.engine.Engine is dsengine.DeepSpeedEngine
by_file = {}
for name, module in list(sys.modules.items()):
    if name.split(".")[0] in ("deepspeed", "dsengine"):
        by_file.setdefault(module.__file__, set()).add(id(module))
print([file for file, ids in by_file.items() if len(ids) > 1])
"""
    assert stdout_of(code, with_torch=True) == "[]\n"


def test_function_is_not_shadowed_by_module_of_same_name() -> None:
    code = """
import dsengine.as_deepspeed
import deepspeed.utils
from deepspeed.utils.z3_leaf_module import set_z3_leaf_modules
import deepspeed.utils.z3_leaf_module
print(callable(deepspeed.utils.z3_leaf_module))
"""
    assert stdout_of(code, with_torch=True) == "True\n"


def test_package_metadata_of_deepspeed_names_dsengine() -> None:
    code = """
import dsengine.as_deepspeed
from importlib import metadata
from importlib.util import find_spec
print(metadata.version("deepspeed"), find_spec("deepspeed") is not None)
print(metadata.metadata("deepspeed")["Summary"])
print(metadata.packages_distributions()["deepspeed"][0])
"""
    version, summary, distribution = stdout_of(code).splitlines()
    assert version == f"{dsengine.__version__} True"
    assert "dsengine" in summary and distribution == "deepspeed"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "import deepspeed.moe.layer",
            "does not implement deepspeed.moe.layer: DeepSpeed's MoE layers",
        ),
        ("from deepspeed import DualPipeVModule", "does not implement deepspeed.DualPipeVModule"),
        ("import deepspeed.nonsense", "neither dsengine nor DeepSpeed has deepspeed.nonsense"),
    ],
)
def test_unsupported_import_explains_itself(line: str, words: str) -> None:
    done = python_with_torch("-c", f"import dsengine.as_deepspeed\n{line}")
    assert done.returncode == 1 and words in done.stderr


def test_refuses_if_deepspeed_is_imported_already(tmp_path: Path) -> None:
    code = """
import sys, types
sys.modules["deepspeed"] = types.ModuleType("deepspeed")
import dsengine.as_deepspeed
"""
    done = python("-c", code)
    assert done.returncode == 1 and "deepspeed is already imported" in done.stderr


def test_refuses_if_accelerate_is_imported_already() -> None:
    code = """
import sys, types
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "deepspeed": raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
sys.modules["accelerate"] = types.ModuleType("accelerate")
import dsengine.as_deepspeed
"""
    done = python("-c", code)
    assert done.returncode == 1 and "accelerate is already imported" in done.stderr


def test_script_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, deepspeed, beside\n"
        "print(__name__, sys.argv[1:], deepspeed.__version__, beside.NAME)\n"
    )
    done = python("-m", "dsengine.as_deepspeed", str(script), "--lr", "1")
    assert done.stdout == f"__main__ ['--lr', '1'] {dsengine.__version__} beside\n", done.stderr


def test_module_runs_unchanged() -> None:
    module = ("-m", "dsengine.utils.zero_to_fp32", "--help")
    done = python_with_torch("-m", "dsengine.as_deepspeed", *module)
    assert done.returncode == 0 and "zero_to_fp32" in done.stdout, done.stderr


def test_missing_script_is_a_usage_error() -> None:
    for arguments in ([], ["-m"], ["--what"]):
        done = python("-m", "dsengine.as_deepspeed", *arguments)
        assert done.returncode == 2 and "usage:" in done.stderr


def test_import_does_not_load_torch_or_pydantic() -> None:
    code = "import dsengine.as_deepspeed, sys; print({'torch', 'pydantic'} & set(sys.modules))"
    assert stdout_of(code) == "set()\n"


TRAINS = """
import sys
import torch
import deepspeed
from deepspeed.utils import logger
engine, *_ = deepspeed.initialize(
    model=torch.nn.Linear(4, 4),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 3},
    },
)
engine.backward(engine(torch.ones(1, 4)).sum())
engine.step()
if engine.global_rank == 0:
    print("trained", engine.world_size, type(engine).__module__, sys.argv[1:])
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("around", "inside"),
    [
        (("-m", "dsengine"), ()),
        (("-m", "dsengine.as_deepspeed"), ()),
        ((), ("-m", "dsengine.as_deepspeed")),
    ],
)
def test_torchrun_starts_script_unchanged(
    around: tuple[str, ...], inside: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = python(*around, *launch, *inside, str(script), "--lr", "1")
    assert done.returncode == 0, done.stderr
    *_, release, trained = done.stdout.splitlines()
    assert release.endswith(f"DeepSpeed info: version={dsengine.__version__}")
    assert trained == "trained 2 dsengine.loop.engine ['--lr', '1']"
    for rank in range(2):
        notice = f"[INFO] [Rank {rank}] dsengine replaces deepspeed ({dsengine.__version__})\n"
        assert done.stdout.count(notice) == 1


@pytest.mark.engine
def test_replacement_is_announced_when_framework_raises_log_level(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    quiet = "import deepspeed.utils\ndeepspeed.utils.logger.setLevel('WARNING')\n"
    script.write_text(quiet + TRAINS)
    done = python("-m", "dsengine", str(script))
    assert done.returncode == 0, done.stderr
    notice = f"[INFO] [Rank 0] dsengine replaces deepspeed ({dsengine.__version__})\n"
    assert done.stdout.count(notice) == 1
    assert "DeepSpeed info" not in done.stdout
