"""The trainer's side of vLLM's weight transfer, and a receiver that unpacks what it gets.

``weight_transfer.json`` has the published signatures.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BUFFER_BYTES = 4096


class Group:
    """In place of a communicator: keeps what is broadcast."""

    def __init__(self) -> None:
        self.sent: list[Tensor] = []

    def broadcast(self, tensor: Tensor, src: int) -> None:
        assert src == 0
        self.sent.append(tensor)

    def received(self, info: dict[str, Any]) -> dict[str, Tensor]:
        """Unpack the sent buffers with the names, dtypes and shapes of ``info``."""
        flat = torch.cat(self.sent)
        weights: dict[str, Tensor] = {}
        start = 0
        pairs = zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
        for name, dtype, shape in pairs:
            kind: torch.dtype = getattr(torch, dtype)
            end = start + torch.Size(shape).numel() * kind.itemsize
            weights[name] = flat[start:end].clone().view(kind).view(shape)
            start = end
        assert start == len(flat)
        return weights


def send_packed(iterator: Iterator[tuple[str, Tensor]], group: Group, src: int, limit: int) -> None:
    """Broadcast buffers of tensors, each closed by the tensor that exceeds ``limit`` bytes."""
    buffer: list[Tensor] = []
    filled = 0
    while (item := next(iterator, None)) is not None:
        buffer.append(item[1].contiguous().view(-1).view(torch.uint8))
        filled += buffer[-1].numel()
        if filled > limit:
            group.broadcast(torch.cat(buffer), src=src)
            buffer, filled = [], 0
    if buffer:
        group.broadcast(torch.cat(buffer), src=src)


# vLLM 0.22 to 0.27


@dataclass
class NCCLTrainerSendWeightsArgs:
    group: Any
    src: int = 0
    post_iter_func: Callable[[tuple[str, Tensor]], Tensor] | None = None
    packed: bool = False
    stream: Any = None
    packed_buffer_size_bytes: int = BUFFER_BYTES
    packed_num_buffers: int = 2


class NCCLWeightTransferEngine:
    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, Tensor]], trainer_args: Any) -> None:
        assert trainer_args.packed
        limit = trainer_args.packed_buffer_size_bytes
        send_packed(iterator, trainer_args.group, trainer_args.src, limit)


# vLLM 0.28


@dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightSource(ABC):
    @abstractmethod
    def metadata(self) -> list[ParamMeta]:
        raise NotImplementedError

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError


@dataclass
class NCCLTrainerInitInfo:
    master_address: str
    master_port: int
    world_size: int
    packed: bool = False
    packed_buffer_size_bytes: int = BUFFER_BYTES
    packed_num_buffers: int = 2
    rank: int = field(kw_only=True)


class HTTPVLLMWeightSyncClient:
    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.calls: list[str] = []
        self.info: dict[str, Any] = {}

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.calls.append("init")

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.calls.append("update")
        self.info = update_info

    def finish_weight_update(self) -> None:
        self.calls.append("finish")


class TrainerEngine:
    """In place of NCCLTrainerWeightTransferEngine."""

    def __init__(self, info: NCCLTrainerInitInfo, client: Any, source: WeightSource) -> None:
        self.info, self.client, self.source = info, client, source
        self.group = Group()
        if info.rank == 0:
            client.init_weight_transfer_engine({"world_size": info.world_size})

    def send_weights(self) -> None:
        metadata = self.source.metadata()
        if self.info.rank:
            for _ in self.source:
                pass
            return
        self.group.sent.clear()
        self.client.start_weight_update()
        names = [each.name for each in metadata]
        dtypes = [str(each.dtype).removeprefix("torch.") for each in metadata]
        shapes = [list(each.shape) for each in metadata]
        self.client.update_weights({"names": names, "dtype_names": dtypes, "shapes": shapes})
        send_packed(iter(self.source), self.group, 0, self.info.packed_buffer_size_bytes)
        self.client.finish_weight_update()


class WeightTransferTrainerFactory:
    @classmethod
    def trainer_init(
        cls, init_info: NCCLTrainerInitInfo, *, client: Any, source: WeightSource
    ) -> TrainerEngine:
        return TrainerEngine(init_info, client, source)
