"""The methods of the engine in which ranks need each other."""

from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import ParamSpec, TypeVar

from dsengine.communication.peers.errors import RankFailedError, is_communication_error
from dsengine.communication.peers.status import STATUS
from dsengine.communication.peers.watch import failed_rank, standing_alarm

P = ParamSpec("P")
R = TypeVar("R")


def in_phase(name: str, *, even_alone: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method of the engine a phase, which the failure of another rank ends with words.

    Raises RankFailedError on entering when another rank has failed, and in the place of an
    error of the communication that such a failure has caused. Other exceptions pass.
    ``even_alone``: entering is not refused.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            outer, STATUS.phase = STATUS.phase, name
            STATUS.counters = getattr(args[0], "counters", None) if args else None
            STATUS.cause = ""
            if outer is None:
                STATUS.since = monotonic()
            try:
                if STATUS.alarm is not None and not even_alone:
                    _refuse()
                result = method(*args, **kwargs)
                if STATUS.aborted and not even_alone:
                    _refuse()  # the device has gone on, with whatever was in its memory
                STATUS.steps += name == "step"
                return result
            except RankFailedError:
                raise
            except Exception as error:
                reason = failed_rank() if is_communication_error(error) else None
                if reason is None:
                    STATUS.note(error)
                    raise
                raise RankFailedError(_told(reason)) from error
            finally:
                STATUS.phase, STATUS.last = outer, name
                if outer is None:
                    STATUS.since = monotonic()

        return run

    return decorate


def _refuse() -> None:
    reason = standing_alarm()
    if reason is not None:
        raise RankFailedError(_told(reason))


def _told(reason: str) -> str:
    return f"{reason}; meanwhile this rank was in {STATUS.words}"
