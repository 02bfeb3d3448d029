"""Run a config with the installed DeepSpeed: one rank, on the CPU, over gloo.

Each config runs in its own process, forked after the slow imports, because DeepSpeed keeps state in
module globals.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from suite.limits import scaled

READ, BUILT, STEPPED, RAN = "reading", "building", "stepping", "nothing"
"""Phase that failed: reading the config, initializing the engine, a step, or none."""
STEPS = 3


class Stop(NamedTuple):
    """Phase in which DeepSpeed failed, and its error."""

    at: str
    error: str = ""


def stop_of(config: Mapping[str, Any], client: str | None = None, timeout: float = 120) -> Stop:
    """Read the config, initialize an engine for a small model, and train a few steps.

    A config without an optimizer gets one of the script: torch's AdamW if it is the ``client``,
    else the one that offload accepts.
    """
    _import_once()
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=_report, args=(theirs, dict(config), client))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(scaled(timeout)) else Stop("time", "still running")
    except EOFError:
        return Stop("crash", "the process died")
    finally:
        process.kill()
        process.join()


def _import_once() -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    import deepspeed

    # One rank does not need the shared-memory extension, which takes minutes to compile.
    # (The package's attribute of this name is torch itself.)
    cast(Any, sys.modules["deepspeed.comm.torch"]).build_shm_op = lambda: None
    # DeepSpeed requires AVX512 for fp16 on a CPU; torch does not.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True


def compile_kernels() -> None:
    """Compile the kernels that the examples need, which takes minutes the first time."""
    _import_once()
    from deepspeed.accelerator import get_accelerator

    accelerator: Any = get_accelerator()
    for name in ("FusedAdamBuilder", "CPUAdamBuilder", "CPUAdagradBuilder"):
        accelerator.create_op_builder(name).load(verbose=False)


def _report(pipe: Any, config: dict[str, Any], client: str | None) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pipe.send(_attempt(config, client))
    pipe.close()


def _attempt(config: dict[str, Any], client: str | None) -> Stop:
    import deepspeed
    import torch
    import torch.distributed as dist

    at = READ
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29999")
        path = Path(folder) / "ds.json"
        path.write_text(json.dumps(config))
        try:
            deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
            deepspeed.DeepSpeedConfig(str(path))
            at = BUILT
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
            )
            optimizer = None
            if not isinstance(config.get("optimizer"), dict):
                zero = config.get("zero_optimization")
                offloads = isinstance(zero, dict) and "offload_optimizer" in zero
                own = deepspeed.ops.adam.DeepSpeedCPUAdam
                kind = own if offloads and client is None else torch.optim.AdamW
                optimizer = kind(model.parameters(), lr=1e-3)
            engine, *_ = deepspeed.initialize(
                model=model,
                model_parameters=model.parameters(),
                optimizer=optimizer,
                config=str(path),
            )
            at = STEPPED
            for _ in range(STEPS * max(1, int(engine.gradient_accumulation_steps()))):
                inputs = torch.randn(2, 8, dtype=_dtype(engine))
                loss = engine(inputs).float().square().mean()
                engine.backward(loss)
                engine.step()
        except Exception as error:  # any exception is a result
            return Stop(at, f"{type(error).__name__}: {error}")
    return Stop(RAN)


def _dtype(engine: Any) -> Any:
    return next(engine.module.parameters()).dtype
