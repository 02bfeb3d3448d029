"""comms_logger: how often which collective ran, with how many bytes."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsengine.communication.exchange import GATHER, REDUCE
from dsengine.observation.printing import print_rank0
from dsengine.torch_private import COLLECTIVES, collective_of

PIECES = {GATHER: "all_gather_into_tensor", REDUCE: "reduce_scatter_tensor"}
"""Over gloo each piece of these travels as a message, told by its tag."""


class CommunicationLog(TorchDispatchMode):
    """Counts the collectives that run while it is entered, by name and bytes sent.

    ``settings`` is the whole block ``comms_logger``: ``prof_all``, ``prof_ops`` (names counted
    where not all are), ``verbose`` (print_rank0 each one).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._all = settings["prof_all"]
        self._chosen = set(settings["prof_ops"])
        self._verbose = settings["verbose"]
        self.counts: dict[tuple[str, int], int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (operation := collective_of(func)) is not None:
            self._note(operation, args)
        return func(*args, **(kwargs or {}))

    def _note(self, operation: str, args: Any) -> None:
        name = COLLECTIVES.get(operation, operation.strip("_"))
        if operation in ("send", "recv_") and args[-1] in PIECES:
            if operation == "recv_":
                return  # noted where it is sent
            name = PIECES[args[-1]]
        if not (self._all or name in self._chosen):
            return
        tensors = (leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        size = max((each.numel() * each.element_size() for each in tensors), default=0)
        self.counts[name, size] += 1
        if self._verbose:
            print_rank0(f"comm op: {name}, {size:,} bytes")

    def summary(self) -> str:
        """A table of operation, bytes of the larger side, and count."""
        rows = [f"{name:24} {size:>16,} {n:>8}" for (name, size), n in sorted(self.counts.items())]
        return "\n".join([f"{'operation':24} {'bytes':>16} {'count':>8}", *rows])
