"""Engine methods in which ranks depend on each other."""

from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import ParamSpec, TypeVar

from dsengine.communication.peers.errors import RankFailedError, is_communication_error
from dsengine.communication.peers.status import STATUS
from dsengine.communication.peers.watch import current_failure, departure, failure_reason

P = ParamSpec("P")
R = TypeVar("R")


def in_phase(
    name: str, *, allow_after_failure: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark an engine method as a phase, which raises RankFailedError if another rank fails.

    It is raised on entry if another rank has already failed (unless ``allow_after_failure``), and
    in place of a communication error that such a failure caused. Other exceptions propagate.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            outer, STATUS.phase = STATUS.phase, name
            STATUS.counters = getattr(args[0], "counters", None) if args else None
            STATUS.cause, position = "", STATUS.progress
            if outer is None:
                STATUS.since = monotonic()
            try:
                if STATUS.failure is not None and not allow_after_failure:
                    _raise_if_failed()
                result = method(*args, **kwargs)
                if STATUS.aborted and not allow_after_failure:
                    _raise_if_failed()  # the device may have computed with invalid data
                STATUS.steps += name == "step"
                return result
            except RankFailedError:
                raise
            except Exception as error:
                reason = failure_reason() if is_communication_error(error) else None
                if reason is None:
                    STATUS.record_error(error)
                    raise
                raise RankFailedError(_explain(reason)) from error
            finally:
                STATUS.reached = max(STATUS.reached, position)
                STATUS.phase, STATUS.last = outer, name
                STATUS.needs_all = False
                if outer is None:
                    STATUS.since = monotonic()

        return run

    return decorate


def require_all_ranks() -> None:
    """Raise RankFailedError if a rank ended its training before the running phase.

    Call it before collectives. They would wait for ever, or, where hosts run ahead, this rank would
    in the next read of a result.
    """
    STATUS.needs_all = True
    reason = departure(STATUS.progress)
    if reason is not None:
        raise RankFailedError(_explain(reason))


def record_script_backward() -> None:
    """Record the end of a backward outside of the phases, called by the script."""
    STATUS.needs_all, STATUS.last = False, "backward"
    STATUS.reached = max(STATUS.reached, STATUS.progress)


def _raise_if_failed() -> None:
    reason = current_failure()
    if reason is not None:
        raise RankFailedError(_explain(reason))


def _explain(reason: str) -> str:
    return f"{reason}; this rank was in {STATUS.description}"
