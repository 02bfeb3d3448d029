"""DeepSpeed by itself: parse, and where asked build and step."""

from typing import TYPE_CHECKING

from dsconfig.facts import Facts
from dsconfig.runtimes.behaviour import deepspeed_parse, deepspeed_step
from dsconfig.runtimes.behaviour.replay import MissingFact, Replay

if TYPE_CHECKING:
    from dsconfig.runtimes.deepspeed import DeepSpeed


def run(replay: Replay, facts: Facts, runtime: "DeepSpeed") -> None:
    """Replay as far as ``runtime.until`` says."""
    if facts.world_size is None:
        raise MissingFact("", "the number of processes is unknown", "give --gpus")
    ranks = facts.data_parallel if runtime.mpu else None
    deepspeed_parse.parse(replay, facts, ranks, runtime.version)
    if runtime.until == "step":
        deepspeed_step.build_and_step(replay, facts.client_optimizer, runtime.version)
