"""Blocks of other programs."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrAbsent


class MsAmp(Block, status="external"):
    """MS-AMP fp8 block that accelerate writes; DeepSpeed itself ignores it."""

    enabled: OrAbsent[bool] = key(None, "Turns MS-AMP on.", status="external")
    opt_level: OrAbsent[Literal["O1", "O2"]] = key(None, "MS-AMP level.", status="external")


class InferenceTensorParallel(Block, status="external"):
    """Tensor parallelism while transformers runs a model for inference."""

    tp_size: Integer = key(1, "Tensor-parallel degree.")


class Inference(Block, status="external"):
    """What transformers looks at for inference."""

    tensor_parallel: OrAbsent[InferenceTensorParallel] = key(None, "Tensor parallelism.")
