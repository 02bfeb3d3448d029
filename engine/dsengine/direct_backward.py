"""``loss.backward()`` in the place of ``engine.backward(loss)``.

[Note: direct backward]
While gradients are recorded, the tensors that forward returns carry a hook. In a backward the
engine did not start, the first hook that runs prepares the reduction, and each multiplies its
gradient by what ``engine.backward`` would have put on the loss: the loss scale over the
accumulation steps. With a dynamic loss scale the script has to scale the loss itself,
``engine.scale(loss).backward()``, because it may have used the loss for more than gradients.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.variable import Variable
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from dsengine.engine import Engine


class DirectBackward:
    """Watches the outputs of an engine's forward."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.inside_engine = False
        """Set while ``engine.backward`` runs: the hooks then do nothing."""
        self._prepared = False
        self._scaled = False

    def watch(self, outputs: Any) -> None:
        leaves = (outputs,) if isinstance(outputs, Tensor) else tree_leaves(outputs)
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda gradient, leaf=leaf: self._hook(leaf, gradient))

    def scale(self, loss: Tensor) -> Tensor:
        """Multiply by the loss scale, for a direct backward."""
        self._scaled = True
        return loss.float() * self._engine.loss_scaler.scale

    def _hook(self, output: Tensor, gradient: Tensor) -> Tensor | None:
        if self.inside_engine:
            return None
        engine = self._engine
        if not self._prepared:
            self._prepare(output)
        factor = 1.0 / engine.gradient_accumulation_steps()
        if not self._scaled:
            factor *= engine.loss_scaler.scale
        return gradient * factor if factor != 1.0 else None

    def _prepare(self, output: Tensor) -> None:
        engine = self._engine
        if engine.dynamic_loss_scale() and not self._scaled:
            raise RuntimeError(
                "with a dynamic loss scale, call engine.backward(loss), or "
                "engine.scale(loss).backward()"
            )
        self._prepared = True
        engine.prepare_backward(output)
        Variable._execution_engine.queue_callback(self._finish)  # type: ignore[attr-defined]

    def _finish(self) -> None:
        self._prepared = self._scaled = False
        # FSDP's own callback was queued later and has to run before gradients are complete.
        Variable._execution_engine.queue_callback(  # type: ignore[attr-defined]
            self._engine.sharding.after_backward
        )
