"""``validate`` and ``resolve`` agree on whether the program stops."""

import copy
import random
from collections import Counter

import pytest

import dsconfig
from dsconfig import Effect
from dsconfig.facts import gather
from runtimes.mutations import mutated

RELEASES = ("0.16.4", "0.17.1", "0.18.0", "0.19.3", "0.19.6", "0.19.8")
RUN = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": 1000}
ROUNDS = 150


def mostly_settled(config, pick):
    """Remove most "auto" values, because DeepSpeed alone stops at nearly all of them."""
    return {
        key: mostly_settled(value, pick) if isinstance(value, dict) else value
        for key, value in config.items()
        if value != "auto" or pick.random() < 0.02
    }


def refused(diagnostics):
    return any(found.effect is Effect.REFUSED for found in diagnostics)


@pytest.mark.parametrize("runtime", ["deepspeed", "transformers", "accelerate"])
def test_validate_and_resolve_agree_on_refusals(runtime):
    pick = random.Random(f"stops {runtime}")
    seen = Counter()
    for _ in range(ROUNDS):
        config, release = mutated(pick), pick.choice(RELEASES)
        facts = gather(gpus=pick.choice((1, 8)), model="gpt2", training_args=RUN)
        if runtime == "deepspeed":
            if pick.random() < 0.8:
                config.pop("scheduler", None)  # which stops without its total_num_steps
            settled = mostly_settled(config, pick)
            config = {"train_micro_batch_size_per_gpu": 2, **settled}
            facts = gather(gpus=1)
        given = {"runtime": runtime, "version": release}
        resolution = dsconfig.resolve(copy.deepcopy(config), facts, **given)
        if any(found.code == "DSC150" for found in resolution.diagnostics):
            seen["a fact is missing"] += 1
            continue
        stops = refused(resolution.diagnostics)
        report = dsconfig.validate(copy.deepcopy(config), facts, **given)
        assert refused(report.diagnostics) == stops, (release, config)
        seen[stops] += 1
    assert min(seen[True], seen[False]) > ROUNDS // 20, seen
    assert seen["a fact is missing"] < ROUNDS // 4, seen
