"""Support for ``loss.backward()`` instead of ``engine.backward(loss)``.

[Note: direct backward]
While gradients are recorded, the outputs of forward carry a hook. In a backward that the engine did
not start, the first hook to run prepares the reduction, and every hook multiplies its gradient by
the factor that ``engine.backward`` would apply to the loss: the loss scale divided by the
accumulation steps. With a dynamic loss scale the script must scale the loss itself,
``engine.scale(loss).backward()``, because it may use the loss for more than gradients.

A hook refers to its output, which refers to the hook. This cycle would keep large tensors such as
logits alive until the garbage collector runs, so hooks drop their output after a backward that
frees the graph.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from dsengine.communication.peers import record_script_backward
from dsengine.loop.accumulating import Windows
from dsengine.optimizers.loss_scale import LossScaler
from dsengine.sharding import Gradients
from dsengine.torch_private.tensors import at_end_of_backward, is_functorch_tensor


@dataclass(slots=True, eq=False)
class _OutputHook:
    """The hook on one output of forward."""

    watcher: "DirectBackward"
    output: Tensor | None

    def __call__(self, gradient: Tensor) -> Tensor | None:
        return self.watcher.on_gradient(self, gradient)


@dataclass(eq=False)
class DirectBackward:
    """Installs hooks on the outputs of an engine's forward.

    ``prepare``: called with one output before the first gradient; decides whether to reduce.
    """

    gradients: Gradients
    windows: Windows
    scaler: LossScaler
    prepare: Callable[[Sequence[Tensor]], None]
    has_begun: bool = False
    """Whether a backward started by the script is still running."""
    _inside_engine: bool = False
    _scaled: bool = False
    _fired: list[_OutputHook] = field(default_factory=list[_OutputHook])

    @contextmanager
    def in_engine_backward(self, *, frees_graph: bool) -> Iterator[None]:
        """Disable the hooks while ``engine.backward`` runs."""
        self._inside_engine = True
        try:
            yield
        finally:
            self._inside_engine = False
            for hook in self._fired if frees_graph else ():
                hook.output = None
            self._fired.clear()

    def watch(self, outputs: Any) -> None:
        leaves = (outputs,) if isinstance(outputs, Tensor) else tree_leaves(outputs)
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.requires_grad and not is_functorch_tensor(leaf):
                leaf.register_hook(_OutputHook(self, leaf))

    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss`` multiplied by the loss scale, for a direct backward."""
        self._scaled = True
        return loss.float() * self.scaler.scale

    def on_gradient(self, hook: _OutputHook, gradient: Tensor) -> Tensor | None:
        """Return the gradient to use for an output, None to keep it."""
        if self._inside_engine:
            self._fired.append(hook)
            return None
        if not self.has_begun and hook.output is not None:
            self._prepare(hook.output)
        factor = self.windows.loss_weight / self.windows.accumulation.steps
        if not self._scaled:
            factor *= self.scaler.scale
        return gradient * factor if factor != 1.0 else None

    def _prepare(self, output: Tensor) -> None:
        if self.scaler.dynamic and not self._scaled:
            raise RuntimeError(
                "Loss scaling is required with a dynamic scale: call engine.backward(loss), or "
                "engine.scale(loss).backward()"
            )
        self.has_begun = True
        self.prepare([output])
        # FSDP queues its own callback later, and it must run before gradients are complete.
        at_end_of_backward(lambda: at_end_of_backward(self._complete))

    def reset(self) -> None:
        """Mark the last backward as finished."""
        self.has_begun = self._scaled = False

    def _complete(self) -> None:
        self.gradients.after_backward()
        record_script_backward()
        self.reset()
