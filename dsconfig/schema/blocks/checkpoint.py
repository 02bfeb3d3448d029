"""How checkpoints are written, and what activations are saved."""

from typing import Annotated, Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.markers import AnyCase
from dsconfig.schema.types import Integer, OrAbsent, OrAuto
from dsconfig.schema.value_checks import A_BLOCK, A_BLOCK_OR_NULL, ZERO_OR_ONE, one_of


class ParallelWrite(Block, since="0.7.4"):
    """Which parts are written by several ranks."""

    pipeline_stage: bool = key(
        False,
        "Every data-parallel rank writes a share of the pipeline layers.",
        checked="0.7.4",
        checks=(ZERO_OR_ONE,),
    )


class Writer(Block, since="0.17.1"):
    """The fast checkpoint engine."""

    type: Annotated[Literal["MOCK", "PYTHON", "FAST"], AnyCase()] = key(
        "FAST",
        "Implementation.",
        checked="0.17.1",
        checks=(one_of("mock", "python", "fast", null=True),),
    )
    io_buffer_size: Integer = key(67_108_864, "Size of its buffer.", unit="bytes")
    io_buffer_double: bool = key(True, "Uses two buffers.")
    show_statistics: bool = key(False, "Prints how fast it wrote.")
    data_parallel: Annotated[Literal["REPLICA", "SOCKET", "MACHINE"], AnyCase()] | None = key(
        None,
        "Unit over which ranks share the writing.",
        checked="0.17.1",
        checks=(one_of("replica", "socket", "machine", null=True),),
    )
    decoupled: bool = key(False, "Writes in a process of its own.")
    io_multiplier: Integer = key(1, "Writers per unit.")


class Checkpoint(Block, since="0.3.11"):
    """How checkpoints are written and read."""

    tag_validation: Annotated[Literal["Ignore", "Warn", "Fail"], AnyCase()] = key(
        "WARN",
        "What happens when ranks name a checkpoint differently.",
        checked="0.3.11",
        checks=(one_of("Ignore", "Warn", "Fail"),),
    )
    load_universal: bool = key(False, "Loads a universal checkpoint.", since="0.7.0")
    use_node_local_storage: bool = key(
        False, "Writes the model file on every node rather than once.", since="0.7.5"
    )
    parallel_write: OrAbsent[ParallelWrite] = key(
        None, "Which parts are written by several ranks.", since="0.7.4", checks=(A_BLOCK,)
    )
    checkpoint_serialization: bool = key(
        True, "Uses torch's zip format for fast engines.", since="0.17.1"
    )
    writer: Writer | None = key(
        None,
        "The fast checkpoint engine; absent is torch.save.",
        since="0.17.1",
        checks=(A_BLOCK_OR_NULL,),
    )


class DataStates(Block, since="0.18.1"):
    """Asynchronous checkpoints by the package DataStates."""

    host_cache_size: OrAbsent[Integer] = key(None, "GiB of host memory that the package caches in.")


class ActivationCheckpointing(Block):
    """Defaults of deepspeed.checkpointing; the model's own code turns checkpointing on."""

    partition_activations: OrAuto[bool] = key(
        False,
        "Shards saved activations over model-parallel ranks.",
        memory="saved activations divided by the model-parallel degree",
    )
    cpu_checkpointing: bool = key(
        False,
        "Moves sharded activations to host memory; needs partition_activations.",
        memory="saved activations leave the device for host memory",
        see=("activation_checkpointing.partition_activations",),
    )
    contiguous_memory_optimization: bool = key(
        False,
        "Keeps saved activations in one buffer; needs partition_activations"
        " and number_checkpoints.",
        see=(
            "activation_checkpointing.partition_activations",
            "activation_checkpointing.number_checkpoints",
        ),
    )
    number_checkpoints: Integer | None = key(
        None, "Checkpoints in the model; sizes the contiguous buffers."
    )
    synchronize_checkpoint_boundary: bool = key(False, "Waits for the device at each boundary.")
    profile: bool = key(False, "Times each checkpointed block.")
