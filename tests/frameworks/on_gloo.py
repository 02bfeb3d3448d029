"""Run a program on several CPU ranks.

python -m frameworks.on_gloo PACKAGE (MODULE | SCRIPT.py) ARGS...

PACKAGE: "deepspeed" prepares the real DeepSpeed for the CPU; "dsengine" leaves the import alone.
"""

import importlib
import runpy
import sys
from typing import Any


def use_gloo() -> None:
    """Let accelerate run DeepSpeed on several CPU ranks, for which it knows no backend.

    transformers would also refuse bf16 there, which both packages support.
    """
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    def prepared(*_: Any) -> tuple[str, DistributedType]:
        return "gloo", DistributedType.NO

    PartialState._prepare_backend = prepared  # pyright: ignore[reportAttributeAccessIssue]
    arguments: Any = importlib.import_module("transformers.training_args")
    arguments.is_torch_bf16_gpu_available = lambda: True


if __name__ == "__main__":
    _, package, program, *arguments = sys.argv
    if package == "deepspeed":
        from frameworks.real import import_deepspeed

        import_deepspeed()
    use_gloo()
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
