"""``loss.backward()`` in the place of ``engine.backward(loss)``.

[Note: direct backward]
While gradients are recorded, the tensors that forward returns carry a hook. In a backward the
engine did not start, the first hook that runs prepares the reduction, and each multiplies its
gradient by what ``engine.backward`` would have put on the loss: the loss scale over the
accumulation steps. With a dynamic loss scale the script has to scale the loss itself,
``engine.scale(loss).backward()``, because it may have used the loss for more than gradients.

A hook has to know its output, which knows the hook: the two would keep each other, and logits
are large, until Python's collector comes by. So after a backward that frees the graph the hooks
that ran let go of theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from dsengine.torch_private import at_end_of_backward, is_functorch_tensor

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine


@dataclass(slots=True, eq=False)
class _OutputHook:
    """Stands on one output of forward."""

    watcher: "DirectBackward"
    output: Tensor | None

    def __call__(self, gradient: Tensor) -> Tensor | None:
        return self.watcher.passed(self, gradient)


class DirectBackward:
    """Watches the outputs of an engine's forward."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._inside_engine = False
        self._prepared = False
        self._scaled = False
        self._passed: list[_OutputHook] = []

    @contextmanager
    def of_engine(self, *, frees_graph: bool) -> Iterator[None]:
        """While ``engine.backward`` runs, the hooks do nothing."""
        self._inside_engine = True
        try:
            yield
        finally:
            self._inside_engine = False
            for hook in self._passed if frees_graph else ():
                hook.output = None
            self._passed.clear()

    def watch(self, outputs: Any) -> None:
        leaves = (outputs,) if isinstance(outputs, Tensor) else tree_leaves(outputs)
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.requires_grad and not is_functorch_tensor(leaf):
                leaf.register_hook(_OutputHook(self, leaf))

    def scale(self, loss: Tensor) -> Tensor:
        """Multiply by the loss scale, for a direct backward."""
        self._scaled = True
        return loss.float() * self._engine.loss_scaler.scale

    def passed(self, hook: _OutputHook, gradient: Tensor) -> Tensor | None:
        """Backward has come to an output; return what its gradient is replaced by."""
        if self._inside_engine:
            self._passed.append(hook)
            return None
        engine = self._engine
        if not self._prepared and hook.output is not None:
            self._prepare(hook.output)
        factor = engine.share / engine.gradient_accumulation_steps()
        if not self._scaled:
            factor *= engine.loss_scaler.scale
        return gradient * factor if factor != 1.0 else None

    def _prepare(self, output: Tensor) -> None:
        engine = self._engine
        if engine.dynamic_loss_scale() and not self._scaled:
            raise RuntimeError(
                "Loss scaling is required with a dynamic scale: call engine.backward(loss), or "
                "engine.scale(loss).backward()"
            )
        self._prepared = True
        engine.prepare_backward(output)
        # FSDP's own callback is queued later and has to run before gradients are complete.
        at_end_of_backward(lambda: at_end_of_backward(self._complete))

    @property
    def has_begun(self) -> bool:
        """Whether a script's own backward has begun and not come to its end."""
        return self._prepared

    def forget(self) -> None:
        """Take the last backward for over."""
        self._prepared = self._scaled = False

    def _complete(self) -> None:
        self._engine.sharding.after_backward()
        self.forget()
