"""Replay an integer of 400 digits at each key: whether DeepSpeed 0.19.8 accepts the file.

To record: DS_ACCELERATOR=cpu PYTHONPATH=tests python -m replays.large_integers
"""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import dsconfig
from dsconfig.facts import Facts
from dsconfig.report import Effect
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.schema import keys
from replays import Case
from replays.odd_values import OF_THE_MACHINE, configs

ORACLE = Path(__file__).parents[1] / "oracle" / "large_integers.json"
VALUES = {"10**400": 10**400, "-10**400": -(10**400)}


def paths() -> list[str]:
    return [key.path for key in keys() if key.path != OF_THE_MACHINE]


def record() -> dict[str, list[str]]:
    """Return the keys at which DeepSpeed raises an exception, by value."""
    from deepspeed.runtime import config as module

    refused: dict[str, list[str]] = {name: [] for name in VALUES}
    with patch.multiple(module.dist, get_rank=lambda *_: 0, get_world_size=lambda *_: 1):
        for name, value in VALUES.items():
            for path, _, config in configs(paths(), [value]):
                try:
                    module.DeepSpeedConfig(config)
                except Exception:  # of any class
                    refused[name].append(path)
    return refused


def replay(path: Path = ORACLE) -> Iterator[Case]:
    """Return whether ``validate`` reports a refusal, and DSC013 in any case."""
    recorded = json.loads(path.read_text())
    runtime, facts = deepspeed(until="parse"), Facts(world_size=1)
    for name, value in VALUES.items():
        for key, _, config in configs(paths(), [value]):
            found = dsconfig.validate(config, facts, runtime=runtime).diagnostics
            refused = any(finding.effect is Effect.REFUSED for finding in found)
            expected = key in recorded[name]
            is_reported = "DSC013" in [finding.code for finding in found]
            same = refused == expected and is_reported
            yield Case(f"validate {key}: {name}", expected, refused, same)


if __name__ == "__main__":
    ORACLE.write_text(json.dumps(record(), indent=0) + "\n")
