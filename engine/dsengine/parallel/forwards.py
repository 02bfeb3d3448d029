"""Hooks of a model that ranks divide: what is checked around each of its forwards."""

from functools import partial
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from dsengine.parallel.attention import SequenceAttention
from dsengine.parallel.contract import ForwardContract, named_arguments
from dsengine.parallel.divisible import AttentionProof, depends_on_length, fault_of, mixing_modules
from dsengine.parallel.transformers_attention import keeps_attention, mark, registered
from dsengine.topology import Topology


def watch_forwards(
    model: nn.Module, topology: Topology, device: torch.device, user: object
) -> None:
    """Check the forwards of ``model``, however they are called, in groups that split layers or
    divide sequences.

    Sequences are divided until ``user`` is released. [Note: contract of a forward]
    """
    group = topology.group("sequence") if topology.size("sequence") > 1 else None
    mark(model, None if group is None else user)
    contracts = list[ForwardContract]()
    if topology.size("tensor") > 1:
        contracts.append(ForwardContract(topology.group("tensor"), "tensor", device))
    if contracts or group is not None:
        watch = _Watch(model, contracts, group, device, user)
        before: Any = torch.compiler.disable(watch.before)
        after: Any = torch.compiler.disable(watch.after)
        model.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        model.register_forward_hook(after, with_kwargs=True, always_call=True)


class _Watch:
    """``contracts``: those of ranks that split layers. ``group``: ranks that divide sequences."""

    def __init__(
        self,
        model: nn.Module,
        contracts: list[ForwardContract],
        group: dist.ProcessGroup | None,
        device: torch.device,
        user: object,
    ) -> None:
        self._contracts, self._user = contracts, ref(user)
        self._attention = registered(model) if group is not None else None
        self._sequence: ForwardContract | None = None
        self._proof: AttentionProof | None = None
        self._is_proven = self._attention is None
        if group is not None:
            fault = None
            if self._attention is not None:
                shifts = getattr(model, "loss_type", "") == "ForCausalLM"
                fault = partial(fault_of, shifts_labels=shifts)
                self._refuse_mixing(model)
                self._share_positions(model, self._attention)
            self._sequence = ForwardContract(group, "sequence", device, fault)

    @torch.no_grad()
    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        arguments = named_arguments(module, args, kwargs)
        for contract in self._contracts:
            contract.check(arguments, training=module.training)
        if self._sequence is not None and self._divides(module):
            self._sequence.check(arguments, training=module.training)
            if self._attention is not None and not self._is_proven:
                self._proof = AttentionProof(module, self._attention)

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        proof, self._proof = self._proof, None
        if proof is None:
            return
        proof.close()
        if output is not None:  # None: the forward has failed
            proof.check(module, named_arguments(module, args, kwargs), output)
            self._is_proven = True

    def _refuse_mixing(self, model: nn.Module) -> None:
        """Let modules that mix tokens raise an error when they run, such as towers of images."""
        for module, message in mixing_modules(model).items():

            def refuse(_: nn.Module, __: Any, message: str = message) -> None:
                if self._divides(model):
                    raise ValueError(message)

            module.register_forward_pre_hook(refuse)

    def _share_positions(self, model: nn.Module, attention: SequenceAttention) -> None:
        """Let rotary embeddings with frequencies by length see the positions of all parts."""
        group = attention.group

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if not self._divides(model):
                return args, kwargs
            named = named_arguments(module, args, kwargs)
            return (), named | {"position_ids": attention.whole_positions(named["position_ids"])}

        def after(_: nn.Module, __: Any, output: Any) -> Any:
            if not self._divides(model):
                return output
            rank, ranks = group.rank(), group.size()
            return tree_map_only(Tensor, lambda whole: whole.chunk(ranks, dim=-2)[rank], output)

        for module in filter(depends_on_length, model.modules()):
            module.register_forward_pre_hook(before, with_kwargs=True)
            module.register_forward_hook(after)

    def _divides(self, module: nn.Module) -> bool:
        user = self._user()
        if user is None or not keeps_attention(user):
            return False
        return module.training or self._attention is None or not self._attention.disable_in_eval
