"""Options of the pipeline engine."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrNativeAuto


class Pipeline(Block):
    """Options of the pipeline engine; the model's PipelineModule decides the rest."""

    stages: OrNativeAuto[Integer] = key("auto", "Stored and not read.")
    partition: str = key("best", "Stored and not read.")
    seed_layers: bool = key(False, "Stored and not read.")
    activation_checkpoint_interval: Integer = key(
        0, "Layers between activation checkpoints; 0 is off."
    )
    pipe_partitioned: bool = key(
        True, "Shards activations that travel between stages.", since="0.12.3"
    )
    grad_partitioned: bool = key(
        True, "Shards gradients that travel between stages.", since="0.12.3"
    )
    use_reentrant: bool = key(True, "False takes torch's non-reentrant checkpoint.", since="0.10.3")
