"""Full weights from a checkpoint directory, in one process and without an engine.

Reads checkpoints of dsengine and of DeepSpeed, of any stage and world size:

    python -m dsengine.utils.zero_to_fp32 checkpoints/ weights/ --safe_serialization
"""

import argparse
import re
from os import PathLike
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from dsengine.checkpoints.deepspeed_layout.files import MODEL_FILES, OPTIMIZER_FILES, model_file
from dsengine.checkpoints.deepspeed_layout.read import read_full
from dsengine.checkpoints.export.full_weights import SAFETENSORS_NAME, write_weights
from dsengine.optimizers.precision import DTYPES
from dsengine.parameters.shards import full_tensor_of, is_shard
from dsengine.sharding.restoration import restore_model

Path = str | PathLike[str]
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: Path,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, Tensor]:
    """Return name -> fp32 tensor on the host, for ``tag`` (default: that in ``latest``).

    Includes buffers, and tied weights under each of their names. ``lazy_mode`` has no effect.
    Raises CheckpointError if there is no complete checkpoint, and ValueError for
    ``exclude_frozen_parameters``.
    """
    del lazy_mode
    if exclude_frozen_parameters:
        raise ValueError(
            "exclude_frozen_parameters: a checkpoint does not record which parameters are frozen; "
            "exclude them when saving: save_checkpoint(exclude_frozen_parameters=True)"
        )
    weights = read_full(FilePath(checkpoint_dir), tag, only_weights=True).weights
    return {name: t.float() if t.is_floating_point() else t for name, t in weights.items()}


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: Path, tag: str | None = None
) -> nn.Module:
    """Load full fp32 weights into ``model`` and return it, on the CPU.

    An engine that owns the model releases it. Collective if the checkpoint lacks some of its
    weights.
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
    """Write full weights to files of at most ``max_shard_size``, with an index if several.

    ``safe_serialization`` selects safetensors instead of torch's format.
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
    """Write full fp32 weights, like ``convert_zero_checkpoint_to_state_dict``."""
    convert_zero_checkpoint_to_state_dict(
        checkpoint_dir,
        output_dir,
        max_shard_size=max_shard_size,
        safe_serialization=safe_serialization,
        tag=tag,
        exclude_frozen_parameters=exclude_frozen_parameters,
    )


def get_model_state_file(checkpoint_dir: Path, zero_stage: int) -> str:
    """Return rank 0's model file in DeepSpeed's layout."""
    return get_checkpoint_files(checkpoint_dir, model_file(0 if zero_stage == 3 else None))[0]


def get_checkpoint_files(checkpoint_dir: Path, glob_pattern: str) -> list[str]:
    """Return the matching files in numerical order.

    Raises FileNotFoundError if there are none.
    """
    files = sorted(FilePath(checkpoint_dir).glob(glob_pattern), key=_numerical_order)
    if not files:
        raise FileNotFoundError(f"{checkpoint_dir} has no files matching {glob_pattern}")
    return [str(file) for file in files]


def get_optim_files(checkpoint_dir: Path) -> list[str]:
    """Return the optimizer files in DeepSpeed's layout, by rank."""
    return get_checkpoint_files(checkpoint_dir, OPTIMIZER_FILES)


def get_model_state_files(checkpoint_dir: Path) -> list[str]:
    """Return the model files in DeepSpeed's layout, by rank."""
    return get_checkpoint_files(checkpoint_dir, MODEL_FILES)


def _numerical_order(path: FilePath) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _dtype(name: str) -> torch.dtype:
    kind = DTYPES.get(name.removeprefix("torch."))
    if kind is None:
        raise ValueError(f"unknown dtype {name!r}: use one of {', '.join(DTYPES)}")
    return kind


def _bytes(size: str | int) -> int:
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"([\d.]+)\s*([A-Za-z]+)", size.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"max_shard_size {size!r} is not a size such as 5GB or 500MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def main(arguments: list[str] | None = None) -> None:
    """Convert a checkpoint from the command line."""
    parser = argparse.ArgumentParser(
        prog="zero_to_fp32",
        description="Export the full weights of a checkpoint.",
    )
    parser.add_argument("checkpoint_dir", help="folder that contains the file latest")
    parser.add_argument("output_dir", help="output folder")
    parser.add_argument("--max_shard_size", default="5GB", help="maximum file size (default: 5GB)")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("-t", "--tag", help="tag of the checkpoint (default: latest)")
    parser.add_argument("--dtype", default="float32", help="float32, float16 or bfloat16")
    options = parser.parse_args(arguments)
    convert_zero_checkpoint_to_state_dict(**vars(options))


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """Return ``item`` with all its tensors copied to ``device``, at any depth.

    torch.save would store a view with its whole storage. Parts of split layers and divided experts
    are gathered: with them it is collective.
    """

    def cloned(tensor: Any) -> Tensor:
        if isinstance(tensor, DTensor) and not is_shard(tensor):
            tensor = full_tensor_of(tensor)
        return tensor.detach().to(device, copy=True).clone()

    return tree_map_only(Tensor, cloned, item)


if __name__ == "__main__":
    main()
