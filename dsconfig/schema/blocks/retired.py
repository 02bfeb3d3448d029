"""Small blocks that were removed."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent


class Amp(Block, until="0.19.7"):
    """Apex AMP; the other keys went to apex.amp.initialize."""

    enabled: bool = key(False, "Turned Apex AMP on.", replaced_by="torch_autocast.enabled")
    opt_level: OrAbsent[str] = key(
        None, "Apex level O0 to O3, passed through.", replaced_by="torch_autocast.dtype"
    )


class ProgressiveLayerDrop(Block, since="0.3.1", until="0.19.7"):
    """Progressive layer dropping."""

    enabled: bool = key(False, "Setting of the removed layer-drop feature.")
    theta: Number = key(1.0, "Setting of the removed layer-drop feature.")
    gamma: Number = key(0.001, "Setting of the removed layer-drop feature.")


class Nebula(Block, since="0.7.0", until="0.19.6"):
    """Azure Nebula checkpoint service."""

    enabled: bool = key(False, "Setting of the removed Nebula service.")
    enable_nebula_load: bool = key(True, "Setting of the removed Nebula service.")
    nebula_load_path: str | None = key(None, "Setting of the removed Nebula service.")
    persistent_storage_path: str | None = key(None, "Setting of the removed Nebula service.")
    persistent_time_interval: Integer = key(100, "Setting of the removed Nebula service.")
    num_of_version_in_retention: Integer = key(2, "Setting of the removed Nebula service.")
