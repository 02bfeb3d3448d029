"""Blocks that only other programs look at."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrAbsent


class MsAmp(Block, status="external"):
    """MS-AMP fp8, written and read by accelerate."""

    enabled: OrAbsent[bool] = key(None, "Turns MS-AMP on.")
    opt_level: OrAbsent[Literal["O1", "O2"]] = key(None, "How much is kept in fp8.")


class InferenceTensorParallel(Block, status="external"):
    """Tensor parallelism while transformers generates."""

    tp_size: Integer = key(1, "Ranks that share a layer.")


class Inference(Block, status="external"):
    """What transformers looks at for generation."""

    tensor_parallel: OrAbsent[InferenceTensorParallel] = key(None, "Tensor parallelism.")
