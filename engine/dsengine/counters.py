"""What a run has done so far, counted as DeepSpeed counts it."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """``micro_steps`` counts calls of step(); ``global_steps`` boundaries, skipped ones too."""

    micro_steps: int = 0
    global_steps: int = 0
    global_samples: int = 0
    skipped_steps: int = 0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.micro_steps = state["micro_steps"]
        self.global_steps = state["global_steps"]
        self.global_samples = state["global_samples"]
        self.skipped_steps = state["skipped_steps"]
