"""Run the scripts in ``loops`` with either package."""

import gc
import multiprocessing
import re
from pathlib import Path
from typing import Any

from training.live_jobs import real_deepspeed

LOOPS = Path(__file__).parent / "loops"


def changed_imports(source: str) -> str:
    """Return ``source`` with its deepspeed imports replaced by dsengine."""
    source = re.sub(r"(?m)^(\s*)import deepspeed$", r"\1import dsengine as deepspeed", source)
    return re.sub(r"(?m)^(\s*(?:import|from) )deepspeed\b", r"\1dsengine", source)


def run_loop(script: str, package: str, arguments: list[str]) -> dict[str, Any]:
    """Return the result of the script's main() on this rank, trained with ``package``."""
    source = (LOOPS / f"{script}.py").read_text()
    if package == "deepspeed":
        multiprocessing.current_process().daemon = False  # its loaders have workers
        real_deepspeed()
    else:
        source = changed_imports(source)
    names: dict[str, Any] = {"__name__": script}
    exec(compile(source, f"{script}.py", "exec"), names)
    result = names["main"](arguments)
    gc.collect()
    return result
