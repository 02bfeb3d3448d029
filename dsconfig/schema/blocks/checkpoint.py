"""Checkpoint files and activation checkpointing."""

from typing import Annotated, Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.markers import AnyCase
from dsconfig.schema.types import Integer, OrAbsent, OrAuto
from dsconfig.schema.value_checks import A_BLOCK, A_BLOCK_OR_NULL, ZERO_OR_ONE, one_of


class ParallelWrite(Block, since="0.7.4"):
    """Parts of a checkpoint that several ranks write in parallel."""

    pipeline_stage: bool = key(
        False,
        "Distribute the writing of pipeline layers over data-parallel ranks.",
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
    io_buffer_size: Integer = key(67_108_864, "Size of the I/O buffer.", unit="bytes")
    io_buffer_double: bool = key(True, "Use two buffers.")
    show_statistics: bool = key(False, "Print write throughput.")
    data_parallel: Annotated[Literal["REPLICA", "SOCKET", "MACHINE"], AnyCase()] | None = key(
        None,
        "Group of ranks that share the writing.",
        checked="0.17.1",
        checks=(one_of("replica", "socket", "machine", null=True),),
    )
    decoupled: bool = key(False, "Write in a separate process.")
    io_multiplier: Integer = key(1, "Writers per group.")


class Checkpoint(Block, since="0.3.11"):
    """Checkpoint settings."""

    tag_validation: Annotated[Literal["Ignore", "Warn", "Fail"], AnyCase()] = key(
        "WARN",
        "Action when ranks use different checkpoint tags.",
        checked="0.3.11",
        checks=(one_of("Ignore", "Warn", "Fail"),),
    )
    load_universal: bool = key(False, "Load a universal checkpoint.", since="0.7.0")
    use_node_local_storage: bool = key(
        False, "Write the model file on every node instead of once.", since="0.7.5"
    )
    parallel_write: OrAbsent[ParallelWrite] = key(
        None, "Parts that several ranks write in parallel.", since="0.7.4", checks=(A_BLOCK,)
    )
    checkpoint_serialization: bool = key(
        True, "Use torch's zip format with the fast checkpoint engines.", since="0.17.1"
    )
    writer: Writer | None = key(
        None,
        "Fast checkpoint engine; torch.save is used if absent.",
        since="0.17.1",
        checks=(A_BLOCK_OR_NULL,),
    )


class DataStates(Block, since="0.18.1"):
    """Asynchronous checkpoints with the DataStates package."""

    host_cache_size: OrAbsent[Integer] = key(None, "Size of the host-memory cache in GiB.")


class ActivationCheckpointing(Block):
    """Defaults of deepspeed.checkpointing; the model code enables checkpointing."""

    partition_activations: OrAuto[bool] = key(
        False,
        "Partition saved activations across model-parallel ranks.",
        memory="saved activations divided by the model-parallel degree",
    )
    cpu_checkpointing: bool = key(
        False,
        "Offload partitioned activations to the CPU; requires partition_activations.",
        memory="saved activations move from the device to host memory",
        see=("activation_checkpointing.partition_activations",),
    )
    contiguous_memory_optimization: bool = key(
        False,
        "Keep saved activations in one contiguous buffer; requires partition_activations"
        " and number_checkpoints.",
        see=(
            "activation_checkpointing.partition_activations",
            "activation_checkpointing.number_checkpoints",
        ),
    )
    number_checkpoints: Integer | None = key(
        None, "Number of checkpoints in the model; determines the size of the contiguous buffers."
    )
    synchronize_checkpoint_boundary: bool = key(
        False, "Synchronize the device at each checkpoint boundary."
    )
    profile: bool = key(False, "Time each checkpointed block.")
