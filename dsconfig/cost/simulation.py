"""Which simulation stands for a runtime."""

from collections.abc import Callable

from dsconfig.cost.timeline import Trace
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.base import Runtime, runtime_of


def simulator_of(runtime: str | Runtime) -> Callable[[Workload], Trace]:
    """The replay of a runtime's allocations. Raises ValueError for an unknown runtime."""
    if runtime_of(runtime).ends_in_deepspeed:
        from dsconfig.cost import deepspeed

        return deepspeed.simulate
    from dsconfig.cost import dsengine

    return dsengine.simulate
