"""The pipeline engine."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrNativeAuto


class Pipeline(Block):
    """Pipeline engine options; a free-form merge over the defaults, so typos are kept silently."""

    stages: OrNativeAuto[Integer] = key("auto", "Stored but not read; the PipelineModule decides.")
    partition: str = key("best", "Stored but not read.")
    seed_layers: bool = key(False, "Stored but not read.")
    activation_checkpoint_interval: Integer = key(
        0, "Layers between activation checkpoints; used only above 0."
    )
    pipe_partitioned: bool = key(
        True, "Shards activations sent between stages; must be a real boolean.", since="0.12.3"
    )
    grad_partitioned: bool = key(
        True, "Shards gradients sent between stages; must be a real boolean.", since="0.12.3"
    )
    use_reentrant: bool = key(
        True, "False chooses the non-reentrant checkpoint function.", since="0.10.3"
    )
