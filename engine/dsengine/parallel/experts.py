"""Experts divided over ranks: tokens are sent to the ranks of their experts, and outputs return.

A module of experts has weights whose first dimension counts experts, and is called with (tokens,
numbers of the chosen experts, their weights), as those of transformers since 5.0. It runs as it is,
on this rank's experts and the tokens of all ranks that chose them.

[Note: gradients of experts]
Ranks of a group have different samples, and each computes the gradients of its experts for all of
them: a sum, where other gradients are averaged over these ranks. In backward the gradients of rows
are divided before a module of experts and multiplied after it: they are smaller than weights.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from dsconfig import Plan
from dsengine.optimizers.precision import policy
from dsengine.parallel.experts_plan import Experts, experts_of
from dsengine.topology import Topology
from dsengine.torch_private.groups import all_to_all_rows
from dsengine.torch_private.modules import parameter_table


def split_experts(model: nn.Module, plan: Plan, topology: Topology) -> None:
    """Replace the weights of experts by this rank's, as DTensors in the storage dtype.

    All ranks have the same full weights.
    """
    mesh, group = topology.expert_mesh, topology.group("expert")
    storage_dtype = policy(plan.effective).storage_dtype
    is_mean = plan.effective.gradients.allreduce_op != "sum"
    for experts in experts_of(model, plan):
        table = parameter_table(experts.module)
        for name in experts.weights:
            full = table[name]
            own = full.detach().chunk(group.size())[group.rank()].to(storage_dtype(full))
            part = DTensor.from_local(own.contiguous().clone(), mesh, [Shard(0)], run_check=False)
            table[name] = nn.Parameter(part, full.requires_grad)
        Dispatch(experts, group, group.size() if is_mean else 1).install()


def _set_number(module: nn.Module, number: int) -> None:
    """Set the attribute from which experts of transformers read how many they are."""
    if "num_experts" in vars(module):
        vars(module)["num_experts"] = number


class _Sent(NamedTuple):
    """What returns the outputs of experts to their tokens.

    ``order``: chosen (token, expert) pairs by expert; ``sizes``: how many of them this rank has
    sent to, and received from, each rank.
    """

    scores: Tensor
    order: Tensor
    sizes: tuple[list[int], list[int]]


class Dispatch:
    """Hooks of one module of experts, which exchange rows within ``group``.

    ``divisor``: of the gradients of its weights. [Note: gradients of experts]
    """

    def __init__(self, experts: Experts, group: dist.ProcessGroup, divisor: int) -> None:
        self._experts = experts
        self._group = group
        self._divisor = divisor
        self._sent: _Sent | None = None
        self._split: dict[str, Any] = {}
        """The module's divided parameters, while it has local ones."""

    def install(self) -> None:
        self._experts.module.register_forward_pre_hook(self._before)
        self._experts.module.register_forward_hook(self._after, always_call=True)

    def _before(self, module: nn.Module, inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        if len(inputs) != 3:
            raise ValueError(
                f"{self._experts.name}: expert_parallel requires experts that are called with "
                "three positional arguments: tokens, numbers of experts, and their weights"
            )
        tokens, numbers, scores = inputs
        rows, own, self._sent = self._dispatch(tokens, numbers, scores)
        if not len(rows):  # every rank computes gradients, which may be zeros
            rows, own = rows.sum(0, keepdim=True), own.new_zeros(1)
        if rows.requires_grad and self._divisor > 1:
            rows.register_hook(partial(torch.mul, other=self._divisor))
        table = parameter_table(module)
        self._split = {name: table[name] for name in self._experts.weights}
        table.update({name: part.to_local() for name, part in self._split.items()})
        _set_number(module, self._experts.number // self._group.size())
        return rows, own[:, None], rows.new_ones(len(rows), 1, dtype=scores.dtype)

    def _after(self, module: nn.Module, _: Any, output: Tensor | None) -> Tensor | None:
        sent, self._sent = self._sent, None
        parameter_table(module).update(self._split)
        _set_number(module, self._experts.number)
        self._split = {}
        if output is None or sent is None:  # an error, or the end of a recomputation
            return None
        if output.requires_grad and self._divisor > 1:
            output.register_hook(partial(torch.div, other=self._divisor))
        return self._combine(output, sent)

    def _dispatch(
        self, tokens: Tensor, numbers: Tensor, scores: Tensor
    ) -> tuple[Tensor, Tensor, _Sent]:
        """Return the rows for this rank's experts, and each row's expert among them."""
        ranks, chosen = self._group.size(), numbers.flatten()
        order = chosen.argsort()
        counts = chosen.new_zeros(self._experts.number)
        counts = counts.scatter_add_(0, chosen, torch.ones_like(chosen)).view(ranks, -1)
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts, group=self._group)
        sent, received = torch.stack([counts.sum(1), incoming.sum(1)]).tolist()  # the only read
        rows = all_to_all_rows(tokens[order // numbers.shape[-1]], received, sent, self._group)
        each = torch.arange(incoming.shape[1], device=chosen.device).repeat(ranks)
        own = each.repeat_interleave(incoming.flatten(), output_size=sum(received))
        return rows, own, _Sent(scores, order, (sent, received))

    def _combine(self, output: Tensor, state: _Sent) -> Tensor:
        """Return each token's outputs, weighted and summed."""
        sent, received = state.sizes
        output = output[: sum(received)].contiguous()
        found = all_to_all_rows(output, sent, received, self._group)
        by_token = torch.empty_like(found).index_copy(0, state.order, found)
        by_token = by_token.view(*state.scores.shape, -1)
        return (by_token * state.scores.unsqueeze(-1)).sum(1).to(output.dtype)
