"""Small blocks that DeepSpeed refuses today."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent


class Amp(Block, until="0.19.7"):
    """Apex mixed precision; further keys went to Apex."""

    enabled: bool = key(False, "Turned Apex on.", replaced_by="torch_autocast.enabled")
    opt_level: OrAbsent[str] = key(
        None, "Apex's level, O0 to O3.", replaced_by="torch_autocast.dtype"
    )


class ProgressiveLayerDrop(Block, since="0.3.1", until="0.19.7"):
    """Skips layers at random, more of them as training goes on."""

    enabled: bool = key(False, "Turned layer dropping on.")
    theta: Number = key(1.0, "Share of layers kept in the end.")
    gamma: Number = key(0.001, "How fast that share is reached.")


class Nebula(Block, since="0.7.0", until="0.19.6"):
    """Azure's checkpoint service."""

    enabled: bool = key(False, "Turned the service on.")
    enable_nebula_load: bool = key(True, "Loads through the service.")
    nebula_load_path: str | None = key(None, "Where to load from.")
    persistent_storage_path: str | None = key(None, "Where checkpoints are kept.")
    persistent_time_interval: Integer = key(100, "Seconds between two that are kept.")
    num_of_version_in_retention: Integer = key(2, "Checkpoints that are kept.")
