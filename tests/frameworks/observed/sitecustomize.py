"""Start-up hook: record what either engine trains, and let programs run on two CPU ranks.

Python imports this module at start-up from PYTHONPATH, dsengine's own hook runs it after itself.
Each rank appends the losses that it passes to ``backward`` and the gradient norms after ``step`` to
the file PROGRAMS_OBSERVED.rankN, one JSON object per line.
"""

import importlib
import json
import os
import random
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def _record(name: str, value: Any) -> None:
    rank = os.environ.get("RANK", "0")
    file = Path(f"{os.environ['PROGRAMS_OBSERVED']}.rank{rank}")
    with file.open("a") as lines:
        lines.write(json.dumps({name: float(value)}) + "\n")


def _observe(engine: Any) -> None:
    """Record the losses and norms of every engine of a class."""
    backward, step = engine.backward, engine.step

    def observed_backward(self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        _record("backward", loss.detach().float().mean())
        return backward(self, loss, *args, **kwargs)

    def observed_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps = self.global_steps
        result = step(self, *args, **kwargs)
        norm = self.get_global_grad_norm()
        if self.global_steps > steps and norm is not None:
            _record("norm", norm)
        return result

    engine.backward, engine.step = observed_backward, observed_step


def _dsengine(module: Any) -> None:
    _observe(module.Engine)


def _deepspeed(module: Any) -> None:
    _observe(module.DeepSpeedEngine)


def _operators(module: Any) -> None:
    """Leave DeepSpeed without its shared-memory kernel, which takes a minute to compile."""
    module.__compatible_ops__["deepspeed_shm_comm"] = False


def _accelerate(module: Any) -> None:
    """Run on gloo: accelerate has no backend for DeepSpeed on several CPU ranks."""

    def prepared(*_: Any, **__: Any) -> tuple[str, Any]:
        return "gloo", module.DistributedType.NO

    module.PartialState._prepare_backend = prepared


def _arguments(module: Any) -> None:
    """Allow bf16, which transformers refuses on several CPU ranks."""
    module.is_torch_bf16_gpu_available = lambda: True


def _torch(module: Any) -> None:
    """Seed the generators of programs that do not."""
    random.seed(7)
    module.manual_seed(7)


def _numpy(module: Any) -> None:
    module.random.seed(7)


def _torchvision(_: Any) -> None:
    """Declare the operators that torchvision describes even if it could not load them."""
    torch: Any = importlib.import_module("torch")
    library = torch.library.Library("torchvision", "FRAGMENT")
    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        library.define(f"{name}{boxes}")
    _KEPT.append(library)


_KEPT: list[Any] = []
_AFTER: dict[str, Callable[[Any], None]] = {
    "dsengine.loop.engine": _dsengine,
    "deepspeed.runtime.engine": _deepspeed,
    "deepspeed.ops": _operators,
    "accelerate.state": _accelerate,
    "transformers.training_args": _arguments,
    "torch": _torch,
    "numpy": _numpy,
    "torchvision.extension": _torchvision,
}


class _Loader:
    """Loads a module, then changes it."""

    def __init__(self, loader: Any, change: Callable[[Any], None]) -> None:
        self._loader = loader
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        self._change(module)


class _Finder:
    """Finds the modules to change with the other finders."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = _AFTER.pop(name, None)
        if change is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)  # pyright: ignore[reportAttributeAccessIssue]
        return spec


if "PROGRAMS_OBSERVED" in os.environ:
    sys.meta_path.insert(0, _Finder)  # pyright: ignore[reportArgumentType]
