"""DeepSpeed by itself, and after a program that hands its config on: parse, build, step."""

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
    """Replay as far as ``runtime.until`` says."""
    if facts.world_size is None:
        raise MissingFact("", "the number of processes is unknown", "give --gpus")
    ranks = facts.data_parallel if runtime.mpu or degrees.passes_an_mpu(facts) else None
    deepspeed_parse.parse(replay, facts, ranks, runtime.version)
    if runtime.until == "step":
        deepspeed_step.build_and_step(replay, facts.client_optimizer, runtime.version)


def then_deepspeed(replay: Replay, facts: Facts, version: Version) -> Replay:
    """The replay of a program, with the stop of the DeepSpeed that it hands its config to."""
    if replay.failure is None:
        replay.failure_after = run_replay(copied(replay.config), _after, facts, version).failure
    return replay


def _after(replay: Replay, facts: Facts, version: Version) -> None:
    # A script that hands over no optimizer in the config brings one of its own.
    own = None if "optimizer" in replay.config else facts.client_optimizer or "torch.AdamW"
    ranks = facts.data_parallel if degrees.passes_an_mpu(facts) else None
    deepspeed_parse.parse(replay, facts, ranks, version)
    deepspeed_step.build_and_step(replay, own, version)
