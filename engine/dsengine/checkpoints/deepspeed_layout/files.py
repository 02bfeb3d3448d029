"""Where DeepSpeed puts what, for one tensor-parallel rank."""

import re
from pathlib import Path

from dsengine.checkpoints.directory import read_latest
from dsengine.checkpoints.errors import CheckpointError

MODEL_FILES, OPTIMIZER_FILES = "*_model_states.pt", "*_optim_states.pt"
_OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL_FILE = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def model_file(rank: int | None = None) -> str:
    """The name of the model's file: of a ``rank`` at stage 3, else of all."""
    prefix = "" if rank is None else f"zero_pp_rank_{rank}_"
    return f"{prefix}mp_rank_00_model_states.pt"


def optimizer_file(rank: int, prefix: str) -> str:
    """The name of the optimizer's file of a rank; ``prefix``: "bf16_" in that precision."""
    return f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def is_deepspeed_directory(path: Path) -> bool:
    """Whether ``path`` is a tag directory that DeepSpeed wrote."""
    return path.is_dir() and any(_MODEL_FILE.fullmatch(child.name) for child in path.iterdir())


def tag_directory(path: Path, tag: str | None = None) -> Path:
    """Return the directory of ``tag``, of ``latest``, or ``path`` itself if it is one.

    Raises CheckpointError when there is none.
    """
    if tag is None and is_deepspeed_directory(path):
        return path
    tag = tag or read_latest(path)
    if tag is None:
        raise CheckpointError(f"{path} has no file named latest and holds no checkpoint itself")
    if not is_deepspeed_directory(path / tag):
        raise CheckpointError(f"{path / tag} is not a checkpoint of DeepSpeed")
    return path / tag


def find_files(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return files in order of rank: of the model, one or at stage 3 one per rank; and of the
    optimizer, one per rank or none.

    Raises CheckpointError for model-parallel checkpoints and for missing ranks.
    """
    names = sorted(child.name for child in directory.iterdir())
    models = [match for name in names if (match := _MODEL_FILE.fullmatch(name))]
    optimizers = [match for name in names if (match := _OPTIMIZER_FILE.fullmatch(name))]
    if any(int(match[2]) for match in [*models, *optimizers]):
        raise CheckpointError(f"{directory} is model-parallel, which this reader does not merge")
    return _in_order(directory, models), _in_order(directory, optimizers)


def _in_order(directory: Path, matches: list[re.Match[str]]) -> list[Path]:
    by_rank = {int(match[1] or 0): match[0] for match in matches}
    missing = sorted(set(range(len(by_rank))) - set(by_rank))
    if missing:
        raise CheckpointError(f"{directory} has no file of rank {missing[0]}")
    return [directory / by_rank[rank] for rank in range(len(by_rank))]
