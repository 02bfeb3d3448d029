"""What became of the other ranks: when one fails, every other one says which, and why.

[Note: how ranks hear of each other]
Rank 0 listens; every other rank keeps one connection to it (address and a secret through the
process group's store). Nothing is sent while all is well. A rank whose exception ends the process
sends its last words; one that is killed has none, but the system closes its connection. Rank 0
passes on to all what it hears first; when rank 0 itself is gone, all see that by themselves.
A rank that keeps others waiting is asked for (``lag``); a pass that an error has ended is given up
by all or by none (``giving_up``).

A phase of the engine (forward, backward, step, save ...) that fails because of the communication
then raises RankFailedError, and so does the next one that begins. A rank that hangs in a phase,
because the transport does not notice, has its accelerator's communicators aborted after
``GRACE`` seconds, and after as many more it says why and ends.
"""

from dsengine.communication.peers.errors import RankFailedError, is_communication_error
from dsengine.communication.peers.message import Message
from dsengine.communication.peers.phases import in_phase
from dsengine.communication.peers.watch import absent, failed_rank, give_up, taking_part

__all__ = [
    "Message",
    "RankFailedError",
    "absent",
    "failed_rank",
    "give_up",
    "in_phase",
    "is_communication_error",
    "taking_part",
]
