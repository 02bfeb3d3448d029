"""Update vLLM 0.28 or newer with the weights of a dsengine engine.

vLLM's trainer side takes a WeightSource: metadata in advance, and a new iteration over full tensors
for each update. Every rank of the trainer calls both functions; rank 0 sends.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer import (
    HTTPVLLMWeightSyncClient,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo


class EngineSource(WeightSource):
    """The weights of ``engine``, with adapters of peft merged."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(*each) for each in self.engine.weight_metadata()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.engine.iter_weights()


def connect(engine: Any, url: str, address: str, port: int, workers: int) -> Any:
    """Connect to the vLLM server at ``url`` with ``workers`` GPUs, once before the loop.

    ``address``, ``port``: where rank 0 of the trainer is reached.
    """
    return WeightTransferTrainerFactory.trainer_init(
        init_info=NCCLTrainerInitInfo(
            master_address=address,
            master_port=port,
            world_size=workers + 1,
            rank=engine.global_rank,
            packed=True,
        ),
        client=HTTPVLLMWeightSyncClient(url),
        source=EngineSource(engine),
    )


def update(transfer: Any) -> None:
    """Send the current weights, after ``engine.step()``."""
    transfer.send_weights()
