"""``comms_logger``: counts and sizes of collectives."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsengine.communication.exchange import GATHER, REDUCE
from dsengine.observation.printing import print_rank0
from dsengine.torch_private.groups import COLLECTIVES, arguments_of_each, collective_of

MESSAGES = {GATHER: "all_gather_into_tensor", REDUCE: "reduce_scatter_tensor"}
"""Over gloo these collectives are sent as messages, identified by their tag."""


class CommunicationLog(TorchDispatchMode):
    """Counts the collectives that run inside the context, by name and bytes.

    Collectives that are launched as one are counted one by one.

    ``settings``: the ``comms_logger`` block with ``prof_all``, ``prof_ops`` (names to count if not
    all) and ``verbose`` (print each one).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._all = settings["prof_all"]
        self._chosen = set(settings["prof_ops"])
        self._verbose = settings["verbose"]
        self.counts: dict[tuple[str, int], int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (operation := collective_of(func)) is not None:
            self._record(operation, args)
        return func(*args, **(kwargs or {}))

    def _record(self, operation: str, args: Any) -> None:
        name = COLLECTIVES.get(operation, operation.strip("_"))
        if operation in ("send", "recv_") and args[-1] in MESSAGES:
            if operation == "recv_":
                return  # counted by the sender
            name = MESSAGES[args[-1]]
        if not (self._all or name in self._chosen):
            return
        for arguments in arguments_of_each(operation, args):
            tensors = (leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor))
            size = max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
            self.counts[name, size] += 1
            if self._verbose:
                print_rank0(f"comm op: {name}, {size:,} bytes")

    def summary(self) -> str:
        """Return a table: operation, bytes of the larger side, count."""
        rows = [f"{name:24} {size:>16,} {n:>8}" for (name, size), n in sorted(self.counts.items())]
        return "\n".join([f"{'operation':24} {'bytes':>16} {'count':>8}", *rows])
