"""The accelerate YAML that names a config file."""

from collections.abc import Mapping
from typing import Any

from dsconfig.facts import parallelism
from dsconfig.runtimes.plugin import REFUSED_WITH_A_FILE
from dsconfig.source import plugin_settings


def head(kind: str, gpus: int, nodes: int) -> dict[str, Any]:
    """Return the entries that every accelerate YAML starts with."""
    return {
        "compute_environment": plugin_settings.LOCAL,
        "distributed_type": kind,
        "num_machines": nodes,
        "num_processes": gpus,
    }


def naming(
    config: str,
    stage: object,
    *,
    gpus: int,
    nodes: int,
    launch: Mapping[str, Any] | None = None,
    sequences: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the YAML that names a config file and keeps the other entries of ``launch``.

    Entries that accelerate refuses together with a config file are left out. ``sequences``: the
    arguments of ``parallelism.of_sequences``, if samples are divided.
    """
    launch = launch or {}
    kept = {name: value for name, value in launch.items() if name not in REFUSED_WITH_A_FILE}
    block = {
        name: value
        for name, value in plugin_settings.block_of(launch).items()
        if name not in REFUSED_WITH_A_FILE
    }
    block |= {"deepspeed_config_file": config, "zero3_init_flag": stage == 3}
    if nodes > 1 and not block.get("deepspeed_hostfile"):
        block.setdefault("deepspeed_multinode_launcher", "standard")
    own = head(plugin_settings.DEEPSPEED, gpus, nodes)
    named = {**own, **kept, **own, "deepspeed_config": block}
    if sequences:
        named[parallelism.BLOCK] = {
            **parallelism.block_of(launch),
            **parallelism.of_sequences(**sequences),
        }
    return named
