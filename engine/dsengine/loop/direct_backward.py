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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from dsengine.torch_private.tensors import at_end_of_backward, is_functorch_tensor

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine


@dataclass(slots=True, eq=False)
class _OutputHook:
    """The hook on one output of forward."""

    watcher: "DirectBackward"
    output: Tensor | None

    def __call__(self, gradient: Tensor) -> Tensor | None:
        return self.watcher.on_gradient(self, gradient)


class DirectBackward:
    """Installs hooks on the outputs of an engine's forward."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._inside_engine = False
        self._prepared = False
        self._scaled = False
        self._fired: list[_OutputHook] = []

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
        return loss.float() * self._engine.loss_scaler.scale

    def on_gradient(self, hook: _OutputHook, gradient: Tensor) -> Tensor | None:
        """Return the gradient to use for an output, None to keep it."""
        if self._inside_engine:
            self._fired.append(hook)
            return None
        engine = self._engine
        if not self._prepared and hook.output is not None:
            self._prepare(hook.output)
        factor = engine.loss_weight / engine.gradient_accumulation_steps()
        if not self._scaled:
            factor *= engine.loss_scaler.scale
        return gradient * factor if factor != 1.0 else None

    def _prepare(self, output: Tensor) -> None:
        engine = self._engine
        if engine.loss_scaler.dynamic and not self._scaled:
            raise RuntimeError(
                "Loss scaling is required with a dynamic scale: call engine.backward(loss), or "
                "engine.scale(loss).backward()"
            )
        self._prepared = True
        engine.prepare_backward(output)
        # FSDP queues its own callback later, and it must run before gradients are complete.
        at_end_of_backward(lambda: at_end_of_backward(self._complete))

    @property
    def has_begun(self) -> bool:
        """Whether a backward started by the script is still running."""
        return self._prepared

    def reset(self) -> None:
        """Mark the last backward as finished."""
        self._prepared = self._scaled = False

    def _complete(self) -> None:
        self._engine.sharding.after_backward()
        self.reset()
