"""Activations and gradients exchanged between neighboring stages.

[Note: forms] Inputs of a stage are a tensor or a tuple of them. Before its first outputs in a batch
a stage sends their form: shapes, dtypes, and which require gradients. Later outputs must have
the same, unless shapes are dynamic; then each form is sent. The gradients that come back have the
shapes of the outputs that require them. Sends do not wait for the receiver; each waits for the
previous one in its direction, so that no more than one copy is in flight.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

Values = Tensor | tuple[Tensor, ...]
"""What stages exchange."""


class _Form(NamedTuple):
    is_tuple: bool
    tensors: tuple[tuple[torch.Size, torch.dtype, bool], ...]
    """Shape, dtype, and whether a gradient comes back."""


def tensors_of(values: Values) -> tuple[Tensor, ...]:
    """Return the tensors of ``values``. Raises ValueError for anything else."""
    tensors = values if isinstance(values, tuple) else (values,)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"a pipeline stage returned {type(tensor).__name__}: its last layer must return "
                "a tensor or a tuple of tensors"
            )
    return tensors


def trained(values: Values) -> list[Tensor]:
    """Return the tensors that require gradients."""
    return [tensor for tensor in tensors_of(values) if tensor.requires_grad]


class _Boundary(torch.autograd.Function):
    """Pass on a received tensor and store its gradient; layers may overwrite the result in place,
    which autograd forbids for a leaf."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tensor: Tensor, gradients: list[Tensor], index: int
    ) -> Tensor:
        ctx.gradients, ctx.index = gradients, index
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        ctx.gradients[ctx.index] = outputs[0]
        return None, None, None, None


class Received(NamedTuple):
    """Inputs of a stage, and the gradients of those that require one."""

    values: Values
    gradients: list[Tensor]


class Messages:
    """Sends and receives of one stage. ``dynamic``: shapes may change within a batch.

    ``group``: the ranks of this pipeline, in the order of stages. Tensors are on ``device``, which
    the group supports.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, dynamic: bool) -> None:
        self._group, self._device, self._dynamic = group, device, dynamic
        stage, stages = group.rank(), group.size()
        self._previous = dist.get_global_rank(group, stage - 1) if stage > 0 else -1
        self._next = dist.get_global_rank(group, stage + 1) if stage < stages - 1 else -1
        self._sent: _Form | None = None
        self._received: _Form | None = None
        self._pending: dict[int, list[tuple[Any, Tensor]]] = {}
        """By receiver, sends with the tensors that they read."""

    def begin(self) -> None:
        """Begin a batch, whose shapes may differ from those of the last one."""
        self._sent = self._received = None

    def send_outputs(self, outputs: Values) -> None:
        """Send outputs to the next stage.

        Raises ValueError if their form has changed without ``dynamic``.
        """
        tensors = tensors_of(outputs)
        form = _Form(
            isinstance(outputs, tuple),
            tuple((each.shape, each.dtype, each.requires_grad) for each in tensors),
        )
        if self._sent is None or self._dynamic:
            dist.send_object_list([form], self._next, self._group, self._device)
        elif form != self._sent:
            raise ValueError(
                f"the outputs of pipeline stage {self._group.rank()} were {self._sent.tensors} in "
                f"the first micro batch and are {form.tensors} now: use drop_last in the data "
                "loader, or PipelineModule(dynamic_shape=True)"
            )
        self._sent = form
        self._send(tensors, self._next)

    def receive_inputs(self) -> Received:
        """Return the outputs of the previous stage, which require gradients as there.

        The gradient of one that is not used is zero.
        """
        if self._received is None or self._dynamic:
            forms: list[Any] = [None]
            dist.recv_object_list(forms, self._previous, self._group, self._device)
            self._received = forms[0]
        form = self._received
        assert form is not None
        tensors = self._receive(
            [(shape, dtype) for shape, dtype, _ in form.tensors], self._previous
        )
        gradients: list[Tensor] = []
        for index, (shape, dtype, is_trained) in enumerate(form.tensors):
            if is_trained and torch.is_grad_enabled():
                anchor = torch.empty(0, requires_grad=True)  # makes the result part of a graph
                gradients.append(torch.zeros((), dtype=dtype, device=self._device).expand(shape))
                place = len(gradients) - 1
                tensors[index] = _Boundary.apply(anchor, tensors[index], gradients, place)
        return Received(tuple(tensors) if form.is_tuple else tensors[0], gradients)

    def send_gradients(self, inputs: Received) -> None:
        """Send the gradients of received inputs to the previous stage."""
        self._send(inputs.gradients, self._previous)

    def receive_gradients(self, outputs: Values) -> list[Tensor]:
        """Return the gradients of those ``outputs`` that require one."""
        return self._receive([(each.shape, each.dtype) for each in trained(outputs)], self._next)

    def finish(self) -> None:
        """Wait until everything is sent."""
        for receiver in list(self._pending):
            self._wait(receiver)

    def _send(self, tensors: Sequence[Tensor], receiver: int) -> None:
        self._wait(receiver)
        copies = [tensor.detach().contiguous() for tensor in tensors]
        self._pending[receiver] = [
            (dist.isend(copy, receiver, group=self._group), copy) for copy in copies
        ]

    def _wait(self, receiver: int) -> None:
        for work, _ in self._pending.pop(receiver, ()):
            work.wait()

    def _receive(
        self, shapes: Sequence[tuple[torch.Size, torch.dtype]], sender: int
    ) -> list[Tensor]:
        received = [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in shapes]
        works = [dist.irecv(tensor, sender, group=self._group) for tensor in received]
        for work in works:
            assert work is not None
            work.wait()
        return received
