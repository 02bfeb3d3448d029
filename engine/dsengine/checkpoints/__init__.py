"""Checkpoints: atomic, complete, and loadable at any other world size and stage.

The engine builds a TrainingState and passes it to a Checkpointer:

    state = TrainingState(module=model, optimizer=torch_optimizer,
                          parts={"lr_scheduler": s, "loss_scale": l, "counters": c, "data": d})
    checkpointer.save(state, "out", "global_step10", client_state={"epoch": 1})
    path, client_state = checkpointer.load(state, "out")
"""

from dsengine.checkpoints.checkpointer import Checkpointer
from dsengine.checkpoints.choice import checkpoints
from dsengine.checkpoints.group import CheckpointError, CheckpointMismatchError
from dsengine.checkpoints.state import Stateful, TrainingState

__all__ = [
    "CheckpointError",
    "CheckpointMismatchError",
    "Checkpointer",
    "Stateful",
    "TrainingState",
    "checkpoints",
]
