"""Replay live tensor bytes of real DeepSpeed runs: each recorded phase within 2 %.

The public API estimates the run's own config, resolved for DeepSpeed, for a model of the measured
layers.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig.cost.estimate import Phase
from replays import Case

TOLERANCE = 0.02
PHASES = {
    "init_peak_bytes": ("phase_bytes", Phase.INIT),
    "after_init_bytes": ("end_bytes", Phase.INIT),
    "forward_peak_bytes": ("phase_bytes", Phase.FORWARD),
    "backward_peak_bytes": ("phase_bytes", Phase.BACKWARD),
    "after_backward_bytes": ("end_bytes", Phase.BACKWARD),
    "step_peak_bytes": ("phase_bytes", Phase.STEP),
    "after_step_bytes": ("end_bytes", Phase.STEP),
}


def replay(path: Path) -> Iterator[Case]:
    for run in json.loads(path.read_text())["runs"]:
        device = predicted(run)
        for field, (view, phase) in PHASES.items():
            if field in run:
                got = getattr(device, view)[phase]
                error = got / run[field] - 1
                label = f"{run['name']} {field.removesuffix('_bytes')}"
                yield Case(label, run[field], f"{got} ({error:+.2%})", abs(error) <= TOLERANCE)


def predicted(run: Mapping[str, Any]) -> Any:
    """Return the device memory of a recorded run."""
    return option_of(run).device


def option_of(run: Mapping[str, Any]) -> Any:
    """Return the device, host and NVMe memory of a recorded run."""
    facts = dsconfig.Facts(
        world_size=run["world_size"],
        nodes=1,
        device=dsconfig.DeviceFacts(name="cpu", kind="cpu", fp16=True),
        model=_linear_layers(run["linear_layers"], run["hidden"]),
    )
    version = run.get("deepspeed", "0.19.8")
    resolution = dsconfig.resolve(run["ds_config"], facts, runtime="deepspeed", version=version)
    return dsconfig.estimate(resolution, facts).options[0]


def _linear_layers(count: int, width: int) -> dsconfig.ModelTree:
    layers = tuple(
        dsconfig.ModuleFact(str(index), "Linear", (dsconfig.TensorFact("weight", (width, width)),))
        for index in range(count)
    )
    elements = count * width * width
    return dsconfig.ModelTree(
        name="linear layers",
        parameters=elements,
        trainable=elements,
        root=dsconfig.ModuleFact("", "Sequential", children=layers),
    )
