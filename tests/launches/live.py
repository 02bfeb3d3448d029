"""Run the installed transformers and accelerate on a folder, up to ``deepspeed.initialize``.

The number of GPUs and ranks is simulated, and bf16 counts as supported. Everything else is the
programs' own code: readers, launcher, plugin, Trainer.
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
from replays.launches import compared


class Reached(BaseException):
    """``deepspeed.initialize`` was called, with this config."""


def outcome(case: Launch, folder: Path) -> dict[str, Any]:
    """Return ``config`` as passed to DeepSpeed, the class and text of an error (``error``,
    ``said``), and whether DeepSpeed parsed the config (``parsed``)."""
    case.write(folder)
    with _simulated(case, folder):
        try:
            if case.road != cases.TRAINER:
                os.environ.update(_launched())
            {cases.TRAINER: _train, cases.LAUNCHED: _train, cases.ACCELERATE: _prepare}[case.road]()
        except Reached as reached:
            return _parsed(reached.args[0], case.processes)
        except (Exception, SystemExit) as error:
            return _failed(error)
    raise AssertionError("the script ended without deepspeed.initialize")


def disagreements(folder: Path, rounds: int, seed: int, part: slice) -> list[str]:
    """Return wrong predictions among a part of random launches in subfolders of ``folder``."""
    wrong: list[str] = []
    for case in [*cases.launches(rounds, seed)][part]:
        path = folder / case.id
        path.mkdir()
        case_result = compared(case, outcome(case, path), path)
        if not case_result.agrees:
            wrong.append(f"{case.id}: {case_result.expected}; got {case_result.got}")
    return wrong


def _failed(error: BaseException) -> dict[str, Any]:
    lines = f"{error}".strip().splitlines()
    return {"error": type(error).__name__, "said": lines[0][:160] if lines else ""}


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
    """Return a port for this process, whose process group is created with the first case."""
    return str(reserved_port())


@contextlib.contextmanager
def _simulated(case: Launch, folder: Path) -> Iterator[None]:
    """Use the folder as working directory, and simulate the processes of the case."""
    import accelerate
    import deepspeed
    import transformers.training_args as arguments
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from transformers.integrations import deepspeed as integration

    backend = import_module("deepspeed.comm.torch")  # the attribute is torch itself

    def initialize(**options: Any) -> None:
        raise Reached(options["config_params"])

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
        enter(mock.patch.object(backend, "build_shm_op", lambda: None))  # slow to compile
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
    """Return the variables that ``accelerate launch`` sets; raise its errors."""
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
    """Return a module with the config that transformers reads from the file."""
    import torch
    from transformers import AutoConfig

    model = torch.nn.Linear(2, 2)
    model.config = AutoConfig.from_pretrained(".")
    return model


def _train() -> None:
    """Run ``Trainer.train`` with the YAML of arguments."""
    import torch
    from transformers import HfArgumentParser, Trainer, TrainingArguments

    (args,) = HfArgumentParser(TrainingArguments).parse_yaml_file(cases.ARGUMENTS)
    data = [{"x": torch.zeros(2)} for _ in range(64)]
    Trainer(model=_model(), args=args, train_dataset=data).train()


def _prepare() -> None:
    """Run a script with an Accelerator that supplies what the config omits."""
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
