"""Failure detection between ranks: when one fails, all others report which one, and why.

[Note: failure detection]
Rank 0 runs a server; every other rank keeps one connection to it (address and a secret are
published in the process group's store). In normal operation nothing is sent. A rank whose exception
ends the process sends a final message; for a rank that is killed, the system closes the
connection. Rank 0 broadcasts the first failure it detects; the failure of rank 0 itself is visible
to all. Stragglers are detected on request (``stragglers``). A micro step that raised is aborted by
all ranks or by none (``abort_agreement``).

A phase of the engine (forward, backward, step, save ...) that fails because of the communication
then raises RankFailedError, and so does the next phase. If a rank hangs in a phase because the
transport does not detect the failure, the communicators of its accelerator are aborted after
``GRACE_SECONDS``, and after the same time again it prints the reason and exits.
"""

from dsengine.communication.peers.errors import RankFailedError, is_communication_error
from dsengine.communication.peers.message import Message
from dsengine.communication.peers.phases import in_phase, record_script_backward, require_all_ranks
from dsengine.communication.peers.watch import (
    agree_to_abort,
    failure_reason,
    registered,
    unregister,
)

__all__ = [
    "Message",
    "RankFailedError",
    "agree_to_abort",
    "failure_reason",
    "in_phase",
    "is_communication_error",
    "record_script_backward",
    "registered",
    "require_all_ranks",
    "unregister",
]
