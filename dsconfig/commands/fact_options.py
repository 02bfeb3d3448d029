"""Flags for facts beyond the common ones of ``options.py``."""

from typing import Annotated

import typer

from dsconfig.commands.options import FACTS

DeviceMemory = Annotated[
    str | None,
    typer.Option("--device-memory", help="Memory of one card: 80GiB.", rich_help_panel=FACTS),
]
Accumulation = Annotated[
    int | None,
    typer.Option("--accumulation", help="Passes per optimizer step.", rich_help_panel=FACTS),
]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help="fp32, fp16 or bf16.", rich_help_panel=FACTS)
]
LearningRate = Annotated[
    float | None, typer.Option("--learning-rate", help="Peak rate.", rich_help_panel=FACTS)
]
TotalSteps = Annotated[
    int | None,
    typer.Option("--total-steps", help="Optimizer steps of the run.", rich_help_panel=FACTS),
]
WarmupSteps = Annotated[
    float | None,
    typer.Option("--warmup-steps", help="Steps, or a share below 1.", rich_help_panel=FACTS),
]
Nvme = Annotated[
    str | None,
    typer.Option("--nvme", help="Directory on NVMe for offloading.", rich_help_panel=FACTS),
]
NvmeSize = Annotated[
    str | None,
    typer.Option("--nvme-size", help="Free space there per node: 2TB.", rich_help_panel=FACTS),
]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", help="Degree.", rich_help_panel=FACTS)
]
SequenceParallel = Annotated[
    int, typer.Option("--sequence-parallel", help="Degree.", rich_help_panel=FACTS)
]
PipelineParallel = Annotated[
    int, typer.Option("--pipeline-parallel", help="Degree.", rich_help_panel=FACTS)
]
