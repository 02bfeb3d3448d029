"""Whole weights from a checkpoint directory, in one process and without an engine.

Reads what this engine has saved, and what DeepSpeed has, at any stage and number of ranks:

    python -m dsengine.utils.zero_to_fp32 checkpoints/ weights/ --safe_serialization
"""

import argparse
import re
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn

from dsengine.checkpoints.deepspeed_layout import read_full
from dsengine.checkpoints.deepspeed_layout.files import MODEL_FILES, OPTIMIZER_FILES, model_file
from dsengine.checkpoints.export import write_weights
from dsengine.checkpoints.export.save_weights import SAFETENSORS_NAME
from dsengine.optimizers.precision import DTYPES
from dsengine.sharding.restoration import restore_model

Path = str | PathLike[str]
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: Path,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, Tensor]:
    """Return name -> fp32 tensor on the host, of ``tag`` or what ``latest`` names.

    Buffers are part of it, and a tied weight under each of its names. With ``lazy_mode`` too the
    tensors are there. Raises CheckpointError where there is no whole checkpoint, ValueError for
    ``exclude_frozen_parameters``.
    """
    del lazy_mode
    if exclude_frozen_parameters:
        raise ValueError(
            "exclude_frozen_parameters: a checkpoint does not say which parameters were frozen; "
            "leave them out when saving: save_checkpoint(exclude_frozen_parameters=True)"
        )
    weights = read_full(FilePath(checkpoint_dir), tag, only_weights=True).weights
    return {name: t.float() if t.is_floating_point() else t for name, t in weights.items()}


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: Path, tag: str | None = None
) -> nn.Module:
    """Load whole fp32 weights into ``model`` and return it, on the CPU.

    An engine that has it lets it go. Collective where the checkpoint lacks weights of such a one.
    """
    weights = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    restore_model(model, weights)
    model.load_state_dict(weights, strict=False)
    return model.cpu()


def convert_zero_checkpoint_to_state_dict(
    checkpoint_dir: Path,
    output_dir: Path,
    dtype: torch.dtype | str = torch.float32,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Write whole weights into files of at most ``max_shard_size``, with an index if several.

    ``safe_serialization`` gives safetensors, else torch's format.
    """
    weights = get_fp32_state_dict_from_zero_checkpoint(
        checkpoint_dir, tag, exclude_frozen_parameters
    )
    write_weights(
        weights,
        FilePath(output_dir),
        SAFETENSORS_NAME if safe_serialization else "pytorch_model.bin",
        dtype if isinstance(dtype, torch.dtype) else _dtype(dtype),
        _bytes(max_shard_size) if max_shard_size else 2**63,
    )


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: Path,
    output_dir: Path,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Write whole fp32 weights, as ``convert_zero_checkpoint_to_state_dict`` does."""
    convert_zero_checkpoint_to_state_dict(
        checkpoint_dir,
        output_dir,
        max_shard_size=max_shard_size,
        safe_serialization=safe_serialization,
        tag=tag,
        exclude_frozen_parameters=exclude_frozen_parameters,
    )


def get_model_state_file(checkpoint_dir: Path, zero_stage: int) -> str:
    """Return the file of DeepSpeed's layout in which rank 0 has left the model."""
    return get_checkpoint_files(checkpoint_dir, model_file(0 if zero_stage == 3 else None))[0]


def get_checkpoint_files(checkpoint_dir: Path, glob_pattern: str) -> list[str]:
    """Return the matching files in order of the numbers in their names.

    Raises FileNotFoundError where there is none.
    """
    found = sorted(FilePath(checkpoint_dir).glob(glob_pattern), key=_in_order_of_numbers)
    if not found:
        raise FileNotFoundError(f"{checkpoint_dir} has no files like {glob_pattern}")
    return [str(each) for each in found]


def get_optim_files(checkpoint_dir: Path) -> list[str]:
    """Return the files of DeepSpeed's layout with states of the optimizer, rank by rank."""
    return get_checkpoint_files(checkpoint_dir, OPTIMIZER_FILES)


def get_model_state_files(checkpoint_dir: Path) -> list[str]:
    """Return the files of DeepSpeed's layout with the model, rank by rank."""
    return get_checkpoint_files(checkpoint_dir, MODEL_FILES)


def _in_order_of_numbers(path: FilePath) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _dtype(name: str) -> torch.dtype:
    kind = DTYPES.get(name.removeprefix("torch."))
    if kind is None:
        raise ValueError(f"dtype {name!r} is none of {', '.join(DTYPES)}")
    return kind


def _bytes(size: str | int) -> int:
    if isinstance(size, int):
        return size
    read = re.fullmatch(r"([\d.]+)\s*([A-Za-z]+)", size.strip())
    if read is None or read[2].upper() not in _UNITS:
        raise ValueError(f"max_shard_size {size!r} is no size like 5GB or 500MB")
    return int(float(read[1]) * _UNITS[read[2].upper()])


def main(arguments: list[str] | None = None) -> None:
    """Convert the checkpoint that the command line names."""
    parser = argparse.ArgumentParser(
        prog="zero_to_fp32",
        description="Write the whole weights of a checkpoint into files of their own.",
    )
    parser.add_argument("checkpoint_dir", help="the folder with the file named latest")
    parser.add_argument("output_dir", help="where the weights go")
    parser.add_argument("--max_shard_size", default="5GB", help="of one file: 5GB, 500MB ...")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("-t", "--tag", help="which checkpoint, in the place of the latest")
    parser.add_argument("--dtype", default="float32", help="float32, float16 or bfloat16")
    chosen = parser.parse_args(arguments)
    convert_zero_checkpoint_to_state_dict(**vars(chosen))


__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "convert_zero_checkpoint_to_state_dict",
    "get_checkpoint_files",
    "get_fp32_state_dict_from_zero_checkpoint",
    "get_model_state_file",
    "get_model_state_files",
    "get_optim_files",
    "load_state_dict_from_zero_checkpoint",
]

if __name__ == "__main__":
    main()
