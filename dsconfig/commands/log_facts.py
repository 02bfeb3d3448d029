"""Facts found in the log of a run, for ``estimate --log``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsconfig import mesh
from dsconfig.commands.notes import note
from dsconfig.commands.text_table import paragraph
from dsconfig.facts import machine
from dsconfig.facts.training import TrainingFacts
from dsconfig.project.verdict import not_fitting
from dsconfig.report.sizes import counted, gib
from dsconfig.schema.paths import STAGE
from dsconfig.schema.version import known_release
from dsconfig.source.pointer import is_block, value_at

if TYPE_CHECKING:
    from dsconfig.cost.estimate import Option
    from dsconfig.facts import Facts
    from dsconfig.facts.run_log import RunLog


def with_log(facts: "Facts", log: "RunLog", path: Path) -> "tuple[Facts, list[str]]":
    """Return the facts and what was added to them: ranks, GPU, batch and releases of the log."""
    origins, added = dict(facts.origins), list[str]()
    if facts.world_size is None and log.world_size:
        facts = replace(facts, world_size=log.world_size, nodes=mesh.nodes_for(log.world_size))
        origins["world_size"] = str(path)
        added.append(counted(log.world_size, "GPU"))
    device = _device(log)
    if facts.device is None and device is not None:
        facts = replace(facts, device=device)
        origins["device"] = str(path)
        memory = "" if device.memory_bytes is None else f" with {gib(device.memory_bytes)}"
        added.append(f"{device.name}{memory}")
    if "training" not in origins:
        facts = replace(facts, training=_with_batch(facts.training, log, added))
    releases = {
        name: release for name, release in log.releases.items() if name not in facts.releases
    }
    added += [f"{name} {release}" for name, release in releases.items()]
    return replace(facts, releases={**facts.releases, **releases}, origins=origins), added


def _with_batch(
    training: "TrainingFacts | None", log: "RunLog", added: list[str]
) -> "TrainingFacts | None":
    """Return the training facts with the batch of the log, and append what was added."""
    for field, value, name in (
        ("micro_batch_size", log.micro_batch, "micro batch"),
        ("gradient_accumulation_steps", log.accumulation, "gradient accumulation"),
    ):
        if value is not None and getattr(training, field, None) is None:
            training = replace(training or TrainingFacts(), **{field: value})
            added.append(f"{name} {value}")
    return training


def release(log: "RunLog") -> str | None:
    """Return the DeepSpeed release of the log, None if it is unknown or not supported."""
    try:
        return str(known_release(log.release)) if log.release is not None else None
    except ValueError:
        return None


def print_source(path: Path, added: list[str]) -> None:
    """Print which facts were read from the log."""
    if added:
        note(paragraph(f"from {path}: {', '.join(added)}"))


def note_other_stage(stage: int | None, log: str, config: object, file: str) -> None:
    """Print that a log shows another ZeRO stage than the config; nothing if one is unknown."""
    written = value_at(config, STAGE, 0) if is_block(config) else None
    if stage is not None and type(written) is int and stage != written:
        note(
            paragraph(
                f"{log} shows ZeRO stage {stage}, but {file} has stage {written}: the run used "
                "another config"
            )
        )


def _device(log: "RunLog") -> "machine.DeviceFacts | None":
    """Return the GPU; its memory is that of the out-of-memory error, the catalogue or the log."""
    capacity = log.out_of_memory.capacity if log.out_of_memory else None
    memory = capacity or log.device_memory
    if log.device is None:
        return machine.DeviceFacts(name="GPU of the log", memory_bytes=memory) if memory else None
    try:
        device = machine.named_device(log.device)
    except ValueError:
        return machine.DeviceFacts(name=log.device, memory_bytes=memory)
    return replace(device, memory_bytes=capacity or device.memory_bytes)


def smaller_device(facts: "Facts", option: "Option", log: "RunLog") -> "Facts":
    """Reduce the device memory by what the run failed to allocate, if the estimate fits."""
    failure = log.out_of_memory
    if failure is None or not_fitting(option, facts):
        return facts
    device = facts.device or machine.DeviceFacts(name="the GPU")
    memory = option.device.needed_bytes - failure.tried
    return replace(facts, device=replace(device, memory_bytes=max(memory, 1)))
