"""Replay one odd value at each key: whether DeepSpeed 0.19.8 accepts the file, or what it raises.

To record: DS_ACCELERATOR=cpu PYTHONPATH=tests python -m replays.odd_values
"""

import copy
import json
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dsconfig
from dsconfig.facts import Facts
from dsconfig.report import Effect
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.schema import keys
from replays import Case

ORACLE = Path(__file__).parents[1] / "oracle" / "odd_values.json"
ODD = (
    *(None, True, False, 0, 1, 3, -1, 1.5, "auto", "x", "", [], [1], ["a"], {}, {"a": 1}),
)  # fmt: skip
BY_TYPE = ("optimizer.params.", "scheduler.params.")
"""Read when the engine is built."""
OF_THE_MACHINE = "aio.use_gds"
"""Refused if the driver is missing, whatever the file contains."""
OTHER_CLASS = (
    *("aio.use_gds", "autotuning.exps_dir", "autotuning.results_dir", "checkpoint.writer."),
    *("data_efficiency.data_sampling.dynamic_batching.", "expert_parallel.load_balance_coeff"),
    *("timers.throughput", "torch_autocast.lower_precision_safe_modules"),
    "zero_optimization.leaf_module",
)
"""Keys whose refusal is predicted without its exception class."""
UNTYPED = ("optimizer.params", "auto")
"""Refused like any "auto" in params; without a type, DeepSpeed does not read them."""


def configs(paths: list[str], values: list[Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for path in paths:
        for value in values:
            config: dict[str, Any] = {"train_batch_size": 8}
            *parts, name = path.split(".")
            block = config
            for part in parts:
                block = block.setdefault(part, {})
            block[name] = copy.deepcopy(value)
            yield path, value, config


def record() -> dict[str, Any]:
    """Return the rows of raised errors by value, and the row of each key."""
    from deepspeed.runtime import config as module

    paths = [key.path for key in keys() if not key.path.startswith(BY_TYPE)]
    rows: dict[str, list[str | None]] = {path: [] for path in paths}
    with patch.multiple(module.dist, get_rank=lambda *_: 0, get_world_size=lambda *_: 1):
        for path, _, config in configs(paths, list(ODD)):
            try:
                module.DeepSpeedConfig(config)
                rows[path].append(None)
            except Exception as error:  # any class: its name is recorded
                rows[path].append(type(error).__name__)
    different = sorted({json.dumps(row) for row in rows.values()})
    return {
        "values": list(ODD),
        "rows": [json.loads(row) for row in different],
        "keys": {path: different.index(json.dumps(row)) for path, row in rows.items()},
    }


PARTS = 4


def replay(path: Path = ORACLE, parts: Container[int] = range(PARTS)) -> Iterator[Case]:
    """Return whether ``resolve`` names the exception class and ``validate`` reports a refusal.

    Each part has every key, with a quarter of the values.
    """
    recorded = json.loads(path.read_text())
    runtime, facts = deepspeed(until="parse"), Facts(world_size=1)
    row_of = {key: recorded["rows"][number] for key, number in recorded["keys"].items()}
    values = recorded["values"]
    for number, (key, value, config) in enumerate(configs(list(row_of), values)):
        if sum(divmod(number, len(values))) % PARTS not in parts:
            continue
        # Python considers true and 1 equal, and lists of them
        index = next(i for i, odd in enumerate(values) if json.dumps(odd) == json.dumps(value))
        expected = row_of[key][index]
        if key == OF_THE_MACHINE or (key, value) == UNTYPED:
            continue
        resolution = dsconfig.resolve(config, facts, runtime=runtime)
        failure = resolution.failure
        got = failure.exception or None if failure is not None else None
        if key.startswith(OTHER_CLASS):
            same = (got is None) == (expected is None)
        else:
            same = got == expected
        yield Case(f"resolve {key}: {json.dumps(value)}", expected, got, same)
        report = dsconfig.validate(config, facts, runtime=runtime)
        refused = any(finding.effect is Effect.REFUSED for finding in report.diagnostics)
        same = refused == (expected is not None)
        yield Case(f"validate {key}: {json.dumps(value)}", expected, refused, same)


if __name__ == "__main__":
    ORACLE.write_text(json.dumps(record(), separators=(",", ":")) + "\n")
