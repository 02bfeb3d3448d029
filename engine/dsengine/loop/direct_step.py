"""Support for ``optimizer.step()`` instead of ``engine.step()``.

[Note: direct step]
DeepSpeed's optimizers apply reduced gradients themselves. The torch optimizer that ``initialize``
returns steps shards, which have gradients only inside a step of the engine; its own ``step`` would
do nothing. So ``step`` is replaced on the instance: the engine's calls reach the optimizer's own,
and a script's call updates the weights as ``engine.step()`` does, without counters and schedule.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch.optim import Optimizer

from dsengine.loop.misuse import MisuseError

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine


class _Step:
    """The ``step`` of an engine's optimizer, without strong references to either."""

    def __init__(self, engine: "Engine", optimizer: Optimizer, previous: Any) -> None:
        """``previous``: a schedule's replacement of the step; None for the class's own."""
        self.previous = previous
        self._optimizer = ref(optimizer)
        engine_of_optimizer = ref(engine)

        def step(optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
            owner = engine_of_optimizer()
            if owner is not None and owner.is_outside_step:
                if closure is not None or kwargs:
                    raise MisuseError(
                        "optimizer.step() takes no closure or other arguments with an engine: call "
                        "engine.backward(loss), then optimizer.step()"
                    )
                return owner.step_directly()
            if previous is not None:
                return previous(closure, **kwargs)
            of_class: Any = type(optimizer).step
            return of_class(optimizer, closure, **kwargs)

        self.__func__ = step
        """Schedules of torch wrap this, as that of a bound method."""
        if hasattr(previous, "_wrapped_by_lr_sched"):
            self._wrapped_by_lr_sched = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self._optimizer(), *args, **kwargs)


def install(engine: "Engine", optimizer: Optimizer) -> None:
    """Replace ``optimizer.step``; replaces that of an earlier engine."""
    previous = vars(optimizer).get("step")
    if isinstance(previous, _Step):
        previous = previous.previous
    vars(optimizer)["step"] = _Step(engine, optimizer, previous)
