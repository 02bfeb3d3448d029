"""Jobs that measure memory with divided samples or split layers. Run on every rank."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dsengine
from dsconfig import Degrees
from dsconfig.cost.weights import weights_of
from dsengine.deepspeed.parallel import UlyssesSPAttentionHF
from dsengine.observation.memory import LiveBytes
from dsengine.parallel.tiling import TiledFusedLogitsLoss
from dsengine.parallel.transformers_attention import keep_attention, mark, release_attention
from dsengine.parameters.model_tree import describe
from dsengine.torch_private.tensors import local_part
from plans.models import small_model
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


def block_bytes(ranks: int, tensor: int = 1) -> tuple[float, dict[str, Any]]:
    """Return the bytes that a Llama block keeps for backward on this rank, and its config.

    ``tensor``: the ranks that its layers are split over.
    """
    fewer, _ = _kept(2, ranks, tensor)
    more, config = _kept(4, ranks, tensor)
    return (more - fewer) / 2, config


def llama(layers: int) -> Any:
    import transformers as hf

    return hf.LlamaForCausalLM(hf.LlamaConfig(num_hidden_layers=layers, **SHAPE))


def split(layers: int, tensor: int) -> Any:
    config = sequence_jobs.settings(1, 1, "AdamW", clip=0.0)
    config["tensor_parallel"] = {"autotp_size": tensor}
    return dsengine.initialize(model=llama(layers), config=config)[0]


def _kept(layers: int, ranks: int, tensor: int) -> tuple[int, dict[str, Any]]:
    """Return the bytes of the storages that autograd saves in a forward, except parameters."""
    engine = split(layers, tensor) if tensor > 1 else None
    model = llama(layers) if engine is None else engine.module
    if ranks > 1:
        UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", ranks, BATCH)
        keep_attention(model)
        mark(model, model)
    tensors = (*model.parameters(), *model.buffers())
    own = {local_part(each).untyped_storage().data_ptr() for each in tensors}
    saved: dict[int, Any] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = local_part(tensor).untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    length = LENGTH // ranks
    ids = torch.randint(512, (BATCH, length))
    positions = torch.arange(length).expand(BATCH, length) + _rank(ranks) * length
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = model(input_ids=ids, position_ids=positions).logits.sum()
    assert loss.requires_grad
    result = sum(storage.nbytes() for storage in saved.values()), model.config.to_dict()
    release_attention(model)
    if engine is not None:
        engine.destroy()
    return result


def split_states(tensor: int) -> dict[str, float]:
    """Train a step; return this rank's bytes of weights and moments relative to the estimate."""
    engine = split(4, tensor)
    ids = torch.randint(512, (BATCH, LENGTH))
    engine.backward(engine(input_ids=ids).logits.square().mean())
    engine.step()
    tree = describe(llama(4))
    elements = sum(w.elements for w in weights_of(tree, Degrees(tensor=tensor)))
    states = engine.optimizer.state.values()
    moments = [value for each in states for value in each.values() if value.dim()]
    found = {
        "weights": _bytes(engine.sharding.masters.values()) / (4 * elements),
        "moments": _bytes(moments) / (8 * elements),
    }
    engine.destroy()
    return found


def split_weights(family: str, tensor: int) -> tuple[int, int]:
    """Return the elements of this rank's weights of a small model, and those of the estimate."""
    model, config = small_model(family), sequence_jobs.settings(1, 1, "AdamW", clip=0.0)
    estimated = sum(w.elements for w in weights_of(describe(model), Degrees(tensor=tensor)))
    config["tensor_parallel"] = {"autotp_size": tensor}
    engine, *_ = dsengine.initialize(model=model, config=config)
    found = sum(local_part(each).numel() for each in model.parameters())
    engine.destroy()
    return found, estimated


def _bytes(tensors: Any) -> int:
    return sum(local_part(tensor).nbytes for tensor in tensors)


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
