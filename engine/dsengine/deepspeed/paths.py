"""Paths of DeepSpeed's modules and the modules here that implement them."""

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "dsengine"
FOLDER = Path(__file__).parent
NAMESPACE = f"{PACKAGE}.deepspeed"
_INTERNAL = ("importing", "names", "paths", "refusals", "replacement")
"""Modules of this package that DeepSpeed does not have."""
_ELSEWHERE = {"schedules": f"{PACKAGE}.optimizers.schedules"}
"""Modules outside of this package."""
_SAME_AS = {
    "accelerator.abstract_accelerator": "accelerator",
    "accelerator.cpu_accelerator": "accelerator",
    "accelerator.cuda_accelerator": "accelerator",
    "accelerator.real_accelerator": "accelerator",
    "checkpointing": "runtime.activation_checkpointing.checkpointing",
    "comm.comm": "comm",
    "dist": "comm",
    "git_version_info_installed": "git_version_info",
    "ops.adagrad.cpu_adagrad": "ops.adagrad",
    "ops.adam.cpu_adam": "ops.adam",
    "ops.adam.fused_adam": "ops.adam",
    "ops.lion.cpu_lion": "ops.lion",
    "ops.lion.fused_lion": "ops.lion",
    "ops.op_builder.all_ops": "ops.op_builder",
    "profiling.flops_profiler.profiler": "profiling.flops_profiler",
    "zero": "runtime.zero",
}
"""Modules of DeepSpeed, with that whose file implements them too."""


def module_of(name: str) -> str | None:
    """Return the module that implements ``deepspeed.<name>``, or None."""
    name = canonical(name)
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    path = FOLDER.joinpath(*name.split("."))
    is_module = path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
    return f"{NAMESPACE}.{name}" if name and name not in _INTERNAL and is_module else None


def canonical(name: str) -> str:
    """Return the path below this package of the file that implements ``deepspeed.<name>``."""
    for alias, same in _SAME_AS.items():
        if name == alias or name.startswith(f"{alias}."):
            return same + name.removeprefix(alias)
    return name


def spec_of(full: str) -> ModuleSpec | None:
    """Return the spec of module ``full``, or None if it does not exist."""
    try:
        return find_spec(full)
    except ModuleNotFoundError:  # neither does its package
        return None
