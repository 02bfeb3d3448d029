"""Whether ``from_pretrained`` under stage 3 loads what it loads without DeepSpeed, by family.

python -m frameworks.family_loading run [FAMILY]...   resumes an interrupted run
python -m frameworks.family_loading record            store the outcomes in tests/oracle

Two ranks load each small model that ``save_pretrained`` has written; all parameters and buffers are
compared bit by bit.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from frameworks.families import small_model
from frameworks.running import ROOT
from outcomes import add_outcome, read_outcomes
from suite.limits import scaled

RUNS = Path(os.environ.get("LOADING_RUNS", ROOT / "runs" / "family_loading.jsonl"))
RECORD = ROOT / "tests" / "oracle" / "family_loading.json"
SECONDS = 900.0
RANKS = 2
KINDS = {
    "equal": "loaded on two ranks, bit-equal to loading without DeepSpeed",
    "not built": "transformers cannot build or save a small model from the configuration only",
    "not loaded": "transformers cannot load what it saved, without DeepSpeed either",
    "failed": "other weights than without DeepSpeed, or an error",
}
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


def outcome(family: str, folder: Path) -> tuple[str, str]:
    """Return a family's outcome (one of ``KINDS``) and the reason, on every rank."""
    import dsengine

    try:
        model: Any = small_model(family)
        if dist.get_rank() == 0:
            model.save_pretrained(folder)
    except Exception as error:
        return "not built", _text(error)
    dist.barrier()
    kind = type(model)
    try:
        expected = _tensors(kind.from_pretrained(folder))
    except Exception as error:
        return "not loaded", _text(error)
    try:
        loaded = load_at_stage_3(kind, folder)
        engine, *_ = dsengine.initialize(model=loaded, config=CONFIG)
        found = dict(engine.iter_weights(names="module"))
        buffers = dict(engine.module.named_buffers())
        engine.destroy()
    except Exception as error:
        return "failed", _text(error)
    found |= {name: tensor for name, tensor in buffers.items() if name in expected}
    different = [
        name
        for name, tensor in found.items()
        if not torch.equal(tensor.nan_to_num(), expected[name].nan_to_num())
    ]
    return ("failed", f"different: {different[:4]}") if different else ("equal", "")


def load_at_stage_3(kind: Any, folder: Path, **arguments: Any) -> Any:
    """Return ``kind.from_pretrained(folder)`` as the Trainer calls it at stage 3."""
    from transformers.integrations import deepspeed

    config = deepspeed.HfDeepSpeedConfig(CONFIG)
    try:
        return kind.from_pretrained(folder, **arguments)
    finally:
        deepspeed.unset_hf_deepspeed_config()
        del config


def _tensors(model: Any) -> dict[str, Tensor]:
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in (*named.items(), *model.named_buffers())}


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def loaded(model_types: list[str], folder: str) -> dict[str, tuple[str, str]]:
    """Return the outcomes by family, in ranks that are running."""
    import dsengine.as_deepspeed  # noqa: F401

    warnings.simplefilter("ignore")
    return {name: outcome(name, Path(folder) / name) for name in model_types}


def after_loading(model_type: str, kind: str, folder: str, skip: str = "", allow: str = "") -> str:
    """Train one step after loading; return the error, "" without one.

    ``kind``: a class of transformers. ``skip``: a part of names that the loader of stage 3 skips,
    as some releases of transformers do. ``allow``: DSENGINE_ALLOW_UNLOADED.
    """
    os.environ["DSENGINE_ALLOW_UNLOADED"] = allow
    import transformers
    from transformers import modeling_utils

    import dsengine
    import dsengine.as_deepspeed

    warnings.simplefilter("ignore")
    saved = Path(folder) / model_type
    if dist.get_rank() == 0:
        cast(Any, small_model(model_type)).save_pretrained(saved)
    dist.barrier()
    name = "_load_state_dict_into_zero3_model"
    loader = getattr(modeling_utils, name)

    def skipping(model: Any, state: dict[str, Tensor], *rest: Any) -> Any:
        return loader(model, {n: t for n, t in state.items() if not skip or skip not in n}, *rest)

    setattr(modeling_utils, name, skipping)
    cls = _with_bias() if kind == "WithBias" else getattr(transformers, kind)
    try:
        model = load_at_stage_3(cls, saved)
        optimizer = {"optimizer": {"type": "AdamW"}}
        engine, *_ = dsengine.initialize(model=model, config=CONFIG | optimizer)
    except ValueError as error:
        return str(error)
    finally:
        setattr(modeling_utils, name, loader)
    outputs = engine(input_ids=torch.arange(3, 19).view(1, 16))
    engine.backward(outputs[0].float().square().mean())
    engine.step()
    engine.destroy()
    return ""


def _with_bias() -> type:
    """Return a class with a weight that neither its constructor nor transformers initializes."""
    import transformers

    class WithBias(transformers.LlamaForCausalLM):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bias_of_logits = torch.nn.Parameter(torch.empty(97))

    return WithBias


def written_in_order_of_rank() -> dict[str, Tensor]:
    """Return weights written in ``GatheredParameters``, to which each rank passes its own order."""
    import dsengine

    with dsengine.zero.Init(config_dict_or_path=CONFIG):
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
    given = list(model.parameters())
    if dist.get_rank() == 1:
        given.reverse()
    with dsengine.zero.GatheredParameters(given, modifier_rank=0):
        for number, parameter in enumerate(model.parameters()):
            parameter.data.fill_(number)
    with dsengine.zero.GatheredParameters(given):
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def run(names: Iterable[str]) -> None:
    """Run families in sequence, each in its own processes, except those with an outcome."""
    import transformers  # noqa: F401

    import dsengine.as_deepspeed
    import dsengine.loop.initialization  # noqa: F401

    done = read()
    for family in names:
        if family not in done:
            add_outcome(RUNS, family, *_in_processes(family))


def read() -> dict[str, tuple[str, str]]:
    return read_outcomes(RUNS)


def record() -> None:
    import transformers

    data = {"transformers": transformers.__version__, "families": dict(sorted(read().items()))}
    RECORD.write_text(json.dumps(data, indent=0) + "\n", "utf-8")


def _in_processes(family: str) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(RANKS):
            if (process := os.fork()) == 0:
                _answer(family, Path(folder), rank)
            running.append(process)
        end = time.monotonic() + scaled(SECONDS)
        while running:
            running = [process for process in running if os.waitpid(process, os.WNOHANG)[0] == 0]
            if time.monotonic() > end:
                for process in running:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        answers = [Path(folder) / f"answer{rank}" for rank in range(RANKS)]
        found = [tuple(json.loads(a.read_text())) for a in answers if a.exists()]
        if len(found) < RANKS:
            late = time.monotonic() > end
            return "not built", "takes longer than 15 minutes" if late else "a process ended"
        order = list(KINDS)
        return cast(tuple[str, str], max(found, key=lambda each: order.index(each[0])))


def _answer(family: str, folder: Path, rank: int) -> None:
    """Write this rank's outcome; never returns."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        torch.set_num_threads(1)
        store = dist.FileStore(f"{folder}/store", RANKS)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        found = outcome(family, folder / "saved")
    except BaseException as error:
        found = ("failed", _text(error))
    (folder / f"answer{rank}").write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", *names]:
            from frameworks.family_sweep import families

            run(names or families())
        case ["record"]:
            record()
        case _:
            raise SystemExit(__doc__)
