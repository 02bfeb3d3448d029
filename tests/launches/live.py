"""The installed transformers and accelerate on a folder of files, up to ``deepspeed.initialize``.

Cards and further ranks are not there: their number is what the programs are told, and bf16 counts
as supported. Everything else is the programs' own code: readers, launcher, plugin, Trainer.
"""

import contextlib
import copy
import functools
import gc
import os
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from launches import cases
from launches.cases import Launch
from ports import reserved_port
from replays.launches import judged


class Reached(BaseException):
    """``deepspeed.initialize`` was called, with this config."""


def outcome(case: Launch, folder: Path) -> dict[str, Any]:
    """``config`` is what DeepSpeed is handed, ``error`` the class of what stops it or the program,
    ``said`` its text, and ``parsed`` whether DeepSpeed's own parser was reached."""
    case.write(folder)
    with _as_on(case, folder):
        try:
            if case.road != cases.TRAINER:
                os.environ.update(_launched())
            {cases.TRAINER: _train, cases.LAUNCHED: _train, cases.ACCELERATE: _prepare}[case.road]()
        except Reached as reached:
            return _parsed(reached.args[0], case.processes)
        except (Exception, SystemExit) as error:
            return _failed(error)
    raise AssertionError("the script ended without deepspeed.initialize")


def disagreements(folder: Path, rounds: int, seed: int) -> list[str]:
    """What is told otherwise than it happens, of so many random starts below ``folder``."""
    wrong: list[str] = []
    for case in cases.launches(rounds, seed):
        place = folder / case.id
        place.mkdir()
        found = judged(case, outcome(case, place), place)
        if not found.agrees:
            wrong.append(f"{case.id}: {found.expected}; got {found.got}")
    return wrong


def _failed(error: BaseException) -> dict[str, Any]:
    said = f"{error}".strip().splitlines()
    return {"error": type(error).__name__, "said": said[0][:160] if said else ""}


def _parsed(config: dict[str, Any], processes: int) -> dict[str, Any]:
    from deepspeed.runtime import config as module

    with (
        mock.patch.object(module.dist, "get_rank", lambda *_: 0),
        mock.patch.object(module.dist, "get_world_size", lambda *_: processes),
    ):
        try:
            module.DeepSpeedConfig(copy.deepcopy(config))
        except Exception as error:
            return {**_failed(error), "config": config, "parsed": False}
    return {"config": config, "parsed": True}


@functools.cache
def _port() -> str:
    """One for this process, whose group of one rank is made with the first case."""
    return str(reserved_port())


@contextlib.contextmanager
def _as_on(case: Launch, folder: Path) -> Iterator[None]:
    """The folder as the working directory, and the processes of the case."""
    import accelerate
    import deepspeed
    import transformers.training_args as arguments
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from transformers.integrations import deepspeed as integration

    backend = import_module("deepspeed.comm.torch")  # as an attribute, torch itself is there

    def initialize(**given: Any) -> None:
        raise Reached(given["config_params"])

    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment |= {"MASTER_PORT": _port(), "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    size = property(lambda self: case.processes)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        kept = {name: text for name, text in os.environ.items() if "ACCELERATE" not in name}
        enter(mock.patch.dict(os.environ, {**kept, **environment}, clear=True))
        enter(contextlib.chdir(folder))
        enter(mock.patch.object(deepspeed, "initialize", initialize))
        enter(mock.patch.object(backend, "build_shm_op", lambda: None))  # it is compiled, and idle
        enter(mock.patch.object(arguments, "is_torch_bf16_gpu_available", lambda: True))
        enter(mock.patch.object(arguments.TrainingArguments, "world_size", size))
        enter(mock.patch.object(accelerate.Accelerator, "num_processes", size))
        try:
            yield
        finally:
            for state in (AcceleratorState, GradientState, PartialState):
                state._reset_state()
            integration.unset_hf_deepspeed_config()
            gc.collect()


class _Launched(BaseException):
    """``accelerate launch`` would start the script with these variables."""


def _launched() -> dict[str, str]:
    """The variables that ``accelerate launch`` sets, or what it raises."""
    from accelerate.commands import launch

    def started(args: Any) -> None:
        raise _Launched(launch.prepare_deepspeed_cmd_env(args)[1])

    with mock.patch.object(launch, "deepspeed_launcher", started):
        parser = launch.launch_command_parser()
        try:
            launch.launch_command(parser.parse_args(["--config_file", cases.LAUNCH, "script.py"]))
        except _Launched as launched:
            return launched.args[0]
    raise AssertionError("accelerate did not launch DeepSpeed")


def _model() -> Any:
    """Any module, with the config that transformers makes of the file."""
    import torch
    from transformers import AutoConfig

    model = torch.nn.Linear(2, 2)
    model.config = AutoConfig.from_pretrained(".")
    return model


def _train() -> None:
    """``Trainer.train`` on the YAML of arguments."""
    import torch
    from transformers import HfArgumentParser, Trainer, TrainingArguments

    (args,) = HfArgumentParser(TrainingArguments).parse_yaml_file(cases.ARGUMENTS)
    data = [{"x": torch.zeros(2)} for _ in range(64)]
    Trainer(model=_model(), args=args, train_dataset=data).train()


def _prepare() -> None:
    """A script with an Accelerator, which takes what the config leaves to it."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DummyOptim, DummyScheduler

    accelerator = Accelerator()
    model = _model()
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2))
    things: list[Any] = [model, torch.utils.data.DataLoader(data, batch_size=cases.BATCH)]
    if "optimizer" in config:
        parameters = model.parameters()
        things.append(
            DummyOptim(parameters, lr=cases.LEARNING_RATE, weight_decay=cases.WEIGHT_DECAY)
        )
    else:
        things.append(torch.optim.AdamW(model.parameters(), lr=cases.LEARNING_RATE))
    if "scheduler" in config:
        warmup, steps = cases.WARMUP, cases.STEPS
        things.append(DummyScheduler(things[-1], total_num_steps=steps, warmup_num_steps=warmup))
    accelerator.prepare(*things)
