"""File names in DeepSpeed's checkpoint directories, without tensor parallelism."""

import re
from pathlib import Path

from dsengine.checkpoints.directory import read_latest
from dsengine.checkpoints.errors import CheckpointError

MODEL_FILES, OPTIMIZER_FILES = "*_model_states.pt", "*_optim_states.pt"
_OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL_FILE = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def model_file(rank: int | None = None) -> str:
    """Return the name of a model file: of one ``rank`` at stage 3, otherwise of all ranks."""
    prefix = "" if rank is None else f"zero_pp_rank_{rank}_"
    return f"{prefix}mp_rank_00_model_states.pt"


def optimizer_file(rank: int, prefix: str) -> str:
    """Return the name of a rank's optimizer file; ``prefix``: "bf16_" with bf16."""
    return f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def is_deepspeed_directory(path: Path) -> bool:
    """Whether ``path`` is a tag directory written by DeepSpeed."""
    return path.is_dir() and any(_MODEL_FILE.fullmatch(child.name) for child in path.iterdir())


def tag_directory(path: Path, tag: str | None = None) -> Path:
    """Return the directory of ``tag`` or ``latest``, or ``path`` if it is a tag directory itself.

    Raises CheckpointError if there is none.
    """
    if tag is None and is_deepspeed_directory(path):
        return path
    tag = tag or read_latest(path)
    if tag is None:
        raise CheckpointError(f"{path} has no file named latest and is not a checkpoint itself")
    if not is_deepspeed_directory(path / tag):
        raise CheckpointError(f"{path / tag} is not a DeepSpeed checkpoint")
    return path / tag


def find_files(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return model files (one, or one per rank at stage 3) and optimizer files (one per rank, or
    none), each in rank order.

    Raises CheckpointError for model-parallel checkpoints and for missing ranks.
    """
    names = sorted(child.name for child in directory.iterdir())
    models = [match for name in names if (match := _MODEL_FILE.fullmatch(name))]
    optimizers = [match for name in names if (match := _OPTIMIZER_FILE.fullmatch(name))]
    if any(int(match[2]) for match in [*models, *optimizers]):
        raise CheckpointError(f"{directory} is model-parallel, which is not supported")
    return _in_order(directory, models), _in_order(directory, optimizers)


def _in_order(directory: Path, matches: list[re.Match[str]]) -> list[Path]:
    by_rank = {int(match[1] or 0): match[0] for match in matches}
    missing = sorted(set(range(len(by_rank))) - set(by_rank))
    if missing:
        raise CheckpointError(f"{directory} has no file of rank {missing[0]}")
    return [directory / by_rank[rank] for rank in range(len(by_rank))]
