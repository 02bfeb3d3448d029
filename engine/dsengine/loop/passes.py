"""The forward and backward passes of an engine, and recovery from one that failed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from dsengine.communication.peers import agree_to_abort, require_all_ranks
from dsengine.communication.peers.message import cause_of
from dsengine.loop.accumulating import Windows
from dsengine.loop.counters import Counters
from dsengine.observation.printing import print_rank0
from dsengine.observation.reporter import Reporter
from dsengine.sharding import Gradients, Sharding
from dsengine.torch_private.groups import issued_collectives
from dsengine.torch_private.modules import parameter_table
from dsengine.torch_private.tensors import is_in_backward


@dataclass(eq=False)
class Passes:
    """Records the running pass, decides whether a backward reduces, and aborts a failed pass.

    ``without_masters``: names and modules of frozen parameters that must stay frozen.
    ``reduces_always``: whether every backward reduces gradients; ``is_boundary``: the method of
    the engine, which a script may replace.
    """

    sharding: Sharding
    gradients: Gradients
    windows: Windows
    counters: Counters
    reporter: Reporter
    without_masters: Sequence[tuple[str, nn.Module]]
    reduces_always: bool
    is_boundary: Callable[[], bool]
    _last: str = ""
    """"forward" or "backward" while it runs and after it has failed, otherwise ""."""
    _is_running: bool = False
    _error: str = ""
    """The message of the error that ended it."""
    _issued_before: dict[str, int] = field(default_factory=dict[str, int])
    """By group, the collectives issued before the first forward since a backward, or before the
    last backward if there has been none."""
    _has_forward: bool = False
    """Whether forward has been called since the last backward."""

    @property
    def failed(self) -> str:
        """The pass of the engine that ended with an error, "" for none."""
        return "" if self.is_inside else self._last

    @property
    def is_inside(self) -> bool:
        """Whether a pass, or a backward of the script, is running."""
        return self._is_running or is_in_backward()

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Record the running pass until it completes.

        Nested passes, such as a recomputation or an engine call in a hook, belong to the outer one;
        checkpointing ends a recomputation with an exception once it has what it needs.
        """
        if self.is_inside:
            yield
            return
        self._last, self._is_running = name, True
        if name == "forward" and not self._has_forward:
            self._issued_before = issued_collectives()
            self._has_forward = True
        try:
            yield
        except BaseException as error:
            self._error = cause_of(error)
            raise
        finally:
            self._is_running = False
        self._last = ""

    def prepare_backward(self, roots: Sequence[Tensor]) -> None:
        """Decide whether the coming backward of ``roots`` reduces gradients.

        Raises RuntimeError if it would train a parameter without a master.
        """
        for name, owner in self.without_masters:
            parameter = parameter_table(owner).get(name.rpartition(".")[2])
            if parameter is not None and parameter.requires_grad:
                raise RuntimeError(
                    f"{name} was frozen when this engine was built and has no fp32 master: set "
                    "requires_grad before initialize()"
                )
        self.windows.backwards += 1
        self._issued_before, self._has_forward = issued_collectives(), False
        reduce = self.windows.reduces and self.is_boundary()
        if reduce or self.reduces_always:
            require_all_ranks()
        self.gradients.before_backward(roots, reduce)

    def abort(self, name: str) -> None:
        """Recover from a failed pass whose error the script has caught.

        After a failed backward the gradients of its window are incomplete: they are dropped and the
        window restarts. All ranks must abort the same pass, unless it has no collectives. If this
        fails itself (out of memory), the next forward tries again.

        Raises RankFailedError if other ranks do not abort it.
        """
        was_backward = name == "backward"
        if was_backward or self.sharding.has_forward_collectives:
            phase = f"{name}() of micro step {self.counters.micro_steps + 1}"
            cause = self._error or "an error in the script's own backward"
            before, now = self._issued_before, issued_collectives()
            agree_to_abort(phase, cause, {name: now[name] - before.get(name, 0) for name in now})
        self._has_forward = False
        if was_backward:
            self.gradients.drop()
        self.gradients.abort_pass(in_backward=was_backward)
        if was_backward:
            self.gradients.drop()
            self.windows.restart()
            self.reporter.discard_window()
            print_rank0(
                "a backward has failed: the gradients of its accumulation window are dropped"
            )
        self._last = self._error = ""
