"""DeepSpeed on its own, or after a program that passes its config on: parse, build, step."""

from typing import TYPE_CHECKING

from dsconfig.facts import Facts
from dsconfig.runtimes import degrees
from dsconfig.runtimes.behavior import deepspeed_parse, deepspeed_step
from dsconfig.runtimes.behavior.replay import MissingFact, Replay, run_replay
from dsconfig.schema.version import Version
from dsconfig.source.pointer import copied

if TYPE_CHECKING:
    from dsconfig.runtimes.deepspeed import DeepSpeed


def run(replay: Replay, facts: Facts, runtime: "DeepSpeed") -> None:
    """Replay up to ``runtime.until``."""
    if facts.world_size is None:
        raise MissingFact("", "the number of processes is unknown", "specify --gpus")
    ranks = facts.data_parallel if runtime.mpu or degrees.passes_an_mpu(facts) else None
    deepspeed_parse.parse(replay, facts, ranks, runtime.version)
    if runtime.until == "step":
        deepspeed_step.build_and_step(replay, facts.client_optimizer, runtime.version)


def then_deepspeed(replay: Replay, facts: Facts, version: Version) -> Replay:
    """Add the failure of the DeepSpeed that a program passes its config to."""
    if replay.failure is None:
        replay.failure_after = run_replay(copied(replay.config), _after, facts, version).failure
    return replay


def _after(replay: Replay, facts: Facts, version: Version) -> None:
    # Without an optimizer in the config, the script passes its own.
    own = None if "optimizer" in replay.config else facts.client_optimizer or "torch.AdamW"
    ranks = facts.data_parallel if degrees.passes_an_mpu(facts) else None
    deepspeed_parse.parse(replay, facts, ranks, version)
    deepspeed_step.build_and_step(replay, own, version)
