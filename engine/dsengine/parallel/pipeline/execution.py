"""Execution of the events of one pipeline stage."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from dsconfig.pipelines import Action, Event
from dsengine.parallel.pipeline.messages import Messages, Received, Values


class Computation(Protocol):
    """What an engine does in the events of its stage."""

    def forward(self, inputs: Values, labels: Any) -> Values:
        """Return the outputs of the stage; of the last one, the loss or what replaces it."""
        ...

    def backward(self, outputs: Values, gradients: Sequence[Tensor] | None) -> None:
        """Compute gradients; ``gradients``: of the outputs that require one, None for a loss."""
        ...

    def reduce(self) -> None:
        """End the step, after the last backward."""
        ...


class StageExecution:
    """Runs a list of events with the buffers of the micro batches in flight.

    ``messages``: None with one stage. ``reads``: whether this stage takes inputs and whether it
    takes labels from the data.
    """

    def __init__(self, messages: Messages | None, *, reads: tuple[bool, bool]) -> None:
        self._messages = messages
        self._reads_inputs, self._reads_labels = reads
        self._inputs: dict[int, Received] = {}
        self._outputs: dict[int, Values] = {}
        self._gradients: dict[int, list[Tensor]] = {}

    def run(
        self,
        computation: Computation,
        events: Sequence[Event],
        batches: Callable[[], tuple[Any, Any]],
    ) -> None:
        """Run ``events``; ``batches`` returns the next inputs and labels, on the device."""
        if self._messages is not None:
            self._messages.begin()
        try:
            for action, micro_batch in events:
                self._run(computation, action, micro_batch, batches)
            if self._messages is not None:
                self._messages.finish()
        finally:
            for buffers in (self._inputs, self._outputs, self._gradients):
                buffers.clear()

    def _run(
        self,
        computation: Computation,
        action: Action,
        micro_batch: int,
        batches: Callable[[], tuple[Any, Any]],
    ) -> None:
        messages, inputs, outputs = self._messages, self._inputs, self._outputs
        if action is Action.FORWARD:
            labels = None
            if self._reads_inputs or self._reads_labels:
                read, labels = batches()
                if self._reads_inputs:
                    inputs[micro_batch] = Received(read, [])
            outputs[micro_batch] = computation.forward(inputs[micro_batch].values, labels)
        elif action is Action.BACKWARD:
            gradients = self._gradients.pop(micro_batch, None)
            computation.backward(outputs[micro_batch], gradients)
        elif action is Action.FREE:
            del inputs[micro_batch], outputs[micro_batch]
        elif action is Action.REDUCE:
            computation.reduce()
        elif messages is None:
            raise ValueError(f"a pipeline of one stage cannot {action}")
        elif action is Action.RECEIVE_INPUTS:
            inputs[micro_batch] = messages.receive_inputs()
        elif action is Action.SEND_OUTPUTS:
            messages.send_outputs(outputs[micro_batch])
        elif action is Action.RECEIVE_GRADIENTS:
            self._gradients[micro_batch] = messages.receive_gradients(outputs[micro_batch])
        else:
            messages.send_gradients(inputs[micro_batch])
