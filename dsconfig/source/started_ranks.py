"""How many ranks a launcher starts, on how many nodes.

Its own options decide, then variables of the environment, then what the job reserves. A count that
only the run knows leaves the answer open.
"""

import re
from collections.abc import Mapping
from typing import Any

NODES = ("num_nodes", "nnodes", "num_machines")
EACH = ("num_gpus", "nproc_per_node")
"""Options of launchers that count nodes, and ranks per node."""
OF_DEEPSPEED = ("num_nodes", "num_gpus")
"""Counts of DeepSpeed's launcher."""
OF_LLAMAFACTORY = ("llamafactory-cli", "lmf")
_ALL_DEVICES = frozenset((*OF_LLAMAFACTORY, "axolotl"))
"""Programs that use every visible GPU if no count is given; the others then use one process."""
_SBATCH = re.compile(r"^#SBATCH\s+(-.*)", re.MULTILINE)
_SUBMITTED = re.compile(r"(?:(?<!\S)--([a-z-]+)|(?<!\S)-([NnG]|np))(?:[= ]\s*|(?=\d))(\S+)")
"""An option of ``#SBATCH``, ``srun`` or ``mpirun`` and its value."""
_COUNT = re.compile(r"[0-9]{1,9}")
_SHORT = {"N": "nodes", "gres": "gpus-per-node", "n": "ntasks", "np": "ntasks", "G": "gpus"}


def reserved(text: str) -> dict[str, str]:
    """Return the counts of nodes, GPUs and tasks in the ``#SBATCH`` lines of a script."""
    found: dict[str, str] = {}
    for line in _SBATCH.findall(text):
        found |= counts(line)
    return found


def counts(line: str) -> dict[str, str]:
    """Return the options of a line that are counts; ``gpu:a100:4`` counts 4."""
    found: dict[str, str] = {}
    for long_name, letter, value in _SUBMITTED.findall(line):
        name = str(long_name or letter)
        if name == "gres":  # gpu:a100:4,nvme:1
            value = next((each for each in value.split(",") if each.startswith("gpu")), "")
        number = value.rpartition(":")[2]
        if _COUNT.fullmatch(number):
            found[_SHORT.get(name, name)] = number
    return found


def of_launcher(
    launcher: str,
    options: Mapping[str, Any],
    batch: Mapping[str, str],
    environment: Mapping[str, str | None],
    *,
    is_complete: bool,
) -> dict[str, int]:
    """Return ``gpus`` and ``nodes`` as far as they are known.

    ``batch``: what ``#SBATCH`` and ``srun`` reserve. ``is_complete``: all options are known, so
    that one which is missing has its default.
    """
    if not _are_known(options, *NODES, *EACH) or not _are_known(environment, *_VARIABLES):
        return {}
    nodes = count(options, *NODES)
    if launcher == "accelerate":
        return _product(count(options, "num_processes"), None) | _of(nodes)
    if launcher == "torchrun":
        nodes = nodes or count(environment, "PET_NNODES") or (1 if is_complete else None)
        return _product(_each_of_torchrun(options, batch, environment, is_complete), nodes)
    if launcher == "deepspeed":
        if "hostfile" in options:
            return {}
        each = count(options, "num_gpus") or _included(options.get("include"))
        each = each or len(devices(environment)) or count(batch, "gpus-per-node")
        return _product(each, nodes or 1) if each else _of(nodes)
    nodes = nodes or count(batch, "nodes")
    tasks = count(batch, "ntasks")
    if tasks and "ntasks-per-node" not in batch:
        return _product(tasks, None) | _of(nodes)
    return _product(count(options, *EACH) or count(batch, "ntasks-per-node"), nodes)


_VARIABLES = ("PET_NNODES", "PET_NPROC_PER_NODE")
"""Variables that torchrun reads as options."""


def _each_of_torchrun(
    options: Mapping[str, Any],
    batch: Mapping[str, str],
    environment: Mapping[str, str | None],
    is_complete: bool,
) -> int | None:
    given = options.get("nproc_per_node", environment.get("PET_NPROC_PER_NODE"))
    if given is None and is_complete:
        return 1
    if given in ("auto", "gpu", None):
        return len(devices(environment)) or count(batch, "gpus-per-node")
    return count({"given": given}, "given")


def of_program(program: str, environment: Mapping[str, str | None]) -> dict[str, int]:
    """Return ``gpus`` and ``nodes`` of a program that starts its own ranks."""
    if not _are_known(environment, "NNODES", "NPROC_PER_NODE"):
        return {}
    nodes, each = count(environment, "NNODES"), count(environment, "NPROC_PER_NODE")
    if each is None and program in _ALL_DEVICES:
        each = len(devices(environment))
    return _product(each, nodes)


def devices(environment: Mapping[str, str | None]) -> tuple[int, ...]:
    """Return the visible GPUs, if a variable lists their numbers."""
    listed = (environment.get("CUDA_VISIBLE_DEVICES") or "").replace(" ", "")
    if re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*,?", listed) is None:
        return ()
    return tuple(int(number) for number in listed.split(",") if number)


def count(values: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these options that is a positive integer."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if isinstance(value, str) and _COUNT.fullmatch(value) and int(value):
            return int(value)
    return None


def _product(each: int | None, nodes: int | None) -> dict[str, int]:
    return ({"gpus": each * (nodes or 1)} if each else {}) | _of(nodes)


def _of(nodes: int | None) -> dict[str, int]:
    return {"nodes": nodes} if nodes else {}


def _are_known(values: Mapping[str, Any], *names: str) -> bool:
    """Return whether none of these options has a value that only the run knows: a variable, or a
    range of nodes (``1:4``)."""
    found = [values[name] for name in names if name in values]
    return all(value is not None and ":" not in str(value) for value in found)


def _included(value: object) -> int | None:
    """Return the GPUs of ``localhost:0,1`` on one host."""
    slots = value.partition(":")[2] if isinstance(value, str) and "@" not in value else ""
    return len(slots.split(",")) if slots else None
