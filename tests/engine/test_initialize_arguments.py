"""An argument of ``initialize`` of another type is refused, by name, before anything is started."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dsengine
from dsengine.loop.misuse import ArgumentError
from training.jobs import config
from training.ranks import SharedRanks

pytestmark = pytest.mark.engine


def function(*arguments: Any) -> None:
    """Return nothing."""


VALUES: dict[str, Any] = {
    "int": 5,
    "float": 0.5,
    "bool": True,
    "text": "text",
    "bytes": b"raw",
    "tuple": (1, 2),
    "list": [1],
    "texts": ["a"],
    "nothing": [None],
    "group": [{"params": 5}],
    "dict": {"a": None},
    "set": {1},
    "object": object(),
    "namespace": SimpleNamespace(a=1),
    "class": list,
    "function": function,
    "module": nn.Linear(1, 1),
    "tensor": torch.zeros(2),
    "tensors": [torch.zeros(2)],
    "facts": dsengine.describe(nn.Linear(1, 1)),
}
SEQUENCES = "text bytes tuple list texts nothing group dict tensor tensors"
CALLABLES = "class function module"
VALID: dict[str, str] = {
    "model": "module",
    "optimizer": CALLABLES,
    "model_parameters": "tensors",
    "training_data": SEQUENCES,
    "lr_scheduler": CALLABLES,
    "distributed_port": "int",
    "mpu": "",
    "dist_init_required": "bool",
    "collate_fn": CALLABLES,
    "config": "text dict",
    "mesh_param": "tuple list",
    "config_params": "text dict",
    "args.deepspeed_config": "text dict",
    "plan": "text",
    "training": "",
}
"""By argument, the values whose type is right."""


def started(name: str, value: Any, stage: int) -> None:
    given: dict[str, Any] = {"model": nn.Linear(2, 2), "config": config(stage)}
    if name == "args.deepspeed_config":
        name, value = "args", SimpleNamespace(deepspeed_config=value)
    dsengine.initialize(**given | {name: value})


def test_every_argument_is_listed() -> None:
    names = {name.partition(".")[0] for name in VALID}
    assert set(inspect.signature(dsengine.initialize).parameters) == names


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", VALID)
def test_argument_of_another_type_is_named(name: str, stage: int) -> None:
    for kind in sorted(set(VALUES) - set(VALID[name].split())):
        with pytest.raises(ArgumentError) as caught:
            started(name, VALUES[kind], stage)
        assert str(caught.value).startswith(f"initialize({name}=...) expects ")
    assert not dist.is_initialized()


def test_result_of_a_function_is_named(ranks_of: SharedRanks) -> None:
    assert ranks_of(1).run("training.argument_jobs:refusals_of_results")[0] == [
        "initialize(optimizer=...) expects a function whose result has param_groups, not NoneType",
        "initialize(lr_scheduler=...) expects a function whose result has step, not NoneType",
        "initialize(mpu=...): mpu.get_model_parallel_world_size() returns 'two', not a number",
    ]


@pytest.mark.parametrize("name", ["config", "config_params"])
def test_missing_file_is_named(ranks_of: SharedRanks, name: str) -> None:
    with pytest.raises(RuntimeError, match=r"DSC001 \(none\.json\)"):
        ranks_of(1).run("training.argument_jobs:started_from_file", name=name)
