"""DeepSpeed's build information: the emulated release, and the installed torch."""

from typing import Any

import torch

from dsengine import __version__ as version
from dsengine.deepspeed.ops import __compatible_ops__ as compatible_ops


def _nccl() -> tuple[int, ...]:
    """Return the NCCL release that torch was built with; (0, 0) without."""
    cuda: Any = torch.cuda
    return cuda.nccl.version() if cuda.is_available() else (0, 0)


git_hash = git_branch = None
installed_ops = dict.fromkeys(compatible_ops, False)
"""No kernel is prebuilt; ``compatible_ops`` contains what is supported."""
torch_info = {
    "version": ".".join(torch.__version__.split(".")[:2]),
    "cuda_version": torch.version.cuda or "0.0",
    "nccl_version": ".".join(map(str, _nccl()[:2])),
    "hip_version": torch.version.hip or "0.0",
    "bf16_support": not torch.cuda.is_available() or torch.cuda.is_bf16_supported(),
}

__all__ = [
    "compatible_ops",
    "git_branch",
    "git_hash",
    "installed_ops",
    "torch_info",
    "version",
]
