"""Jobs that train a compiled model."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import dsengine
from training import models

PRODUCTS = frozenset({F.linear})


class Stack(nn.Module):
    """An embedding and blocks with two linear layers each."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(models.VOCABULARY, models.WIDTH)
        self.blocks = nn.ModuleList(models.Block(models.WIDTH) for _ in range(blocks))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()


def losses_and_graphs(config: dict[str, Any], blocks: int) -> dict[str, Any]:
    """Return losses by backend, and for each compiled graph its number of linear layers."""
    products: list[int] = []

    def count(graph: GraphModule, inputs: Any) -> Any:
        del inputs
        products.append(sum(node.target in PRODUCTS for node in graph.graph.nodes))
        return graph.forward

    losses: dict[str, list[float]] = {}
    for name in ("none", "count"):
        torch._dynamo.reset()
        engine, *_ = dsengine.initialize(model=Stack(blocks), config=config)
        if name == "count":
            engine.compile(backend=count)
        losses[name] = []
        for step in range(3):
            loss = engine(models.batch(step, 0, dist.get_rank()))
            engine.backward(loss)
            engine.step()
            losses[name].append(loss.item())
        engine.destroy()
    return {**losses, "graphs": products}
