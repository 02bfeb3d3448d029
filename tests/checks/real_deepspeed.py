"""How far the installed DeepSpeed comes with a config: one rank, on the CPU, over gloo.

Each config has a process of its own, forked after the slow imports, so that what DeepSpeed keeps
in module globals is not handed on.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

READ, BUILT, STEPPED, RAN = "reading", "building", "stepping", "nothing"
"""What stopped: reading the file, building the engine, a step; or nothing did."""
STEPS = 3


class Stop(NamedTuple):
    """Where the program stopped, and what it said."""

    at: str
    error: str = ""


def stop_of(config: Mapping[str, Any], timeout: float = 120) -> Stop:
    """Read the config, build an engine for a small model, and train some steps."""
    _import_once()
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=_report, args=(theirs, dict(config)))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(timeout) else Stop("time", "still running")
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

    # Shared memory between ranks is compiled on first use, for minutes; one rank has no need of it.
    # (The package's attribute of this name is torch itself.)
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # pyright: ignore
    # So are the kernels of its optimizers; configs here use torch's.
    deepspeed.ops.op_builder.builder.OpBuilder.load = _no_kernel  # pyright: ignore
    # DeepSpeed asks the CPU for AVX512 before it lets fp16 in; torch multiplies halves without.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True


def _no_kernel(builder: Any, verbose: bool = True) -> None:
    raise RuntimeError(f"the kernel {builder.name} is not compiled here")


def _report(pipe: Any, config: dict[str, Any]) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pipe.send(_attempt(config))
    pipe.close()


def _attempt(config: dict[str, Any]) -> Stop:
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
            client = None
            if not isinstance(config.get("optimizer"), dict):
                client = torch.optim.AdamW(model.parameters(), lr=1e-3)
            engine, *_ = deepspeed.initialize(
                model=model, model_parameters=model.parameters(), optimizer=client, config=str(path)
            )
            at = STEPPED
            for _ in range(STEPS * max(1, int(engine.gradient_accumulation_steps()))):
                inputs = torch.randn(2, 8, dtype=_dtype(engine))
                loss = engine(inputs).float().square().mean()
                engine.backward(loss)
                engine.step()
        except Exception as error:  # whatever stops it is the answer
            return Stop(at, f"{type(error).__name__}: {error}")
    return Stop(RAN)


def _dtype(engine: Any) -> Any:
    return next(engine.module.parameters()).dtype
