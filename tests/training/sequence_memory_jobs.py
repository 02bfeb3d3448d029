"""Jobs that measure memory with samples divided along the sequence. Run on every rank."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dsengine
from dsengine.deepspeed.runtime.sequence_parallel.ulysses_sp import (
    TiledFusedLogitsLoss,
    UlyssesSPAttentionHF,
)
from dsengine.observation.memory import LiveBytes
from dsengine.parallel.transformers_attention import restore_if_unused
from training import sequence_jobs

BATCH, LENGTH = 2, 256
HIDDEN, VOCABULARY, TILE = 8, 4096, 64
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 512,
    "max_position_embeddings": LENGTH,
    "attn_implementation": "sdpa",
    "use_cache": False,
}


def block_bytes(ranks: int) -> tuple[float, dict[str, Any]]:
    """Return the bytes that a Llama block keeps for backward on this rank, and its config."""
    fewer, _ = _kept(2, ranks)
    more, config = _kept(4, ranks)
    return (more - fewer) / 2, config


def _kept(layers: int, ranks: int) -> tuple[int, dict[str, Any]]:
    """Return the bytes of the storages that autograd saves in a forward, except parameters."""
    import transformers as hf

    model = hf.LlamaForCausalLM(hf.LlamaConfig(num_hidden_layers=layers, **SHAPE))
    if ranks > 1:
        UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", ranks, BATCH)
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    saved: dict[int, Any] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    length = LENGTH // ranks
    ids = torch.randint(512, (BATCH, length))
    positions = torch.arange(length).expand(BATCH, length) + _rank(ranks) * length
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = model(input_ids=ids, position_ids=positions).logits.sum()
    assert loss.requires_grad
    restore_if_unused()
    return sum(storage.nbytes() for storage in saved.values()), model.config.to_dict()


def _rank(ranks: int) -> int:
    return torch.distributed.get_rank() % ranks


class Head(nn.Module):
    """A model whose largest result is the logits."""

    def __init__(self, tiled: bool) -> None:
        super().__init__()
        self.tiled = tiled
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        # Its samples are divided by the caller, and no token depends on another.
        self.core = sequence_jobs.DistributedAttention(None, torch.distributed.group.WORLD)  # type: ignore[arg-type]

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.tokens(ids)
        if not self.tiled:
            return self.losses(self, hidden.flatten(0, 1), labels.flatten())
        shards = ids.numel() // TILE
        return TiledFusedLogitsLoss.apply(self.losses, self, hidden, labels, None, shards)

    @staticmethod
    def losses(model: "Head", hidden: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model.head(hidden), labels)


class _Largest(TorchDispatchMode):
    """Records the most elements of a tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return result


def loss_memory(length: int, tiled: bool) -> dict[str, float]:
    """Train two steps on a part of ``length`` tokens; return loss, most elements, peak bytes."""
    torch.manual_seed(3)
    config = sequence_jobs.settings(3, 1, "SGD", clip=0.0) | {"sequence_parallel_size": 2}
    engine, *_ = dsengine.initialize(model=Head(tiled), config=config)
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1))
    result: dict[str, float] = {}
    for _ in range(2):  # the first step allocates what later ones use again
        live = LiveBytes(torch.device("cpu"), existing=False)
        live.start("step")
        with _Largest() as largest:
            loss = engine(ids, ids.roll(-1, 1))
            engine.backward(loss)
            engine.step()
        live.stop()
        result = {
            "loss": loss.item(),
            "elements": largest.elements,
            "peak": live.peaks["step"],
        }
        del loss
    engine.destroy()
    return result
