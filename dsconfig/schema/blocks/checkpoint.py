"""Checkpoints."""

from typing import Annotated, Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import AnyCase, Integer, OrAbsent


class ParallelWrite(Block, since="0.7.4"):
    """Group with one switch."""

    pipeline_stage: bool = key(
        False, "Every data-parallel rank writes a share of the pipeline layers.", checked="0.7.4"
    )


class Writer(Block, since="0.17.1"):
    """Chooses the fast checkpoint engine; absent means torch.save."""

    type: Annotated[Literal["MOCK", "PYTHON", "FAST"], AnyCase()] = key(
        "FAST", "Writer implementation; case is ignored.", checked="0.17.1"
    )
    io_buffer_size: Integer = key(67_108_864, "Buffer size of the writer.", unit="bytes")
    io_buffer_double: bool = key(True, "Uses two buffers.")
    show_statistics: bool = key(False, "Prints I/O statistics.")
    data_parallel: Annotated[Literal["REPLICA", "SOCKET", "MACHINE"], AnyCase()] | None = key(
        None, "Unit over which ranks share the writing; case is ignored.", checked="0.17.1"
    )
    decoupled: bool = key(False, "Writes in a separate process.")
    io_multiplier: Integer = key(1, "Multiplies the number of writers.")


class Checkpoint(Block, since="0.3.11"):
    """Checkpoint options; unknown keys are ignored."""

    tag_validation: Annotated[Literal["Ignore", "Warn", "Fail"], AnyCase()] = key(
        "WARN",
        "Reaction to checkpoint tags that differ between ranks; case is ignored.",
        checked="0.3.11",
    )
    load_universal: bool = key(False, "Loads a universal checkpoint.", since="0.7.0")
    use_node_local_storage: bool = key(
        False, "Writes the model file on every node instead of once.", since="0.7.5"
    )
    parallel_write: OrAbsent[ParallelWrite] = key(None, "Group with one switch.", since="0.7.4")
    checkpoint_serialization: bool = key(True, "Uses torch's zip serialisation.", since="0.17.1")
    writer: Writer | None = key(
        None, "Chooses the fast checkpoint engine; absent means torch.save.", since="0.17.1"
    )


class DataStates(Block, since="0.18.1"):
    """Asynchronous DataStates checkpoints; any value but false turns them on, even an empty object or null."""

    host_cache_size: OrAbsent[Integer] = key(
        None, "Host cache in GiB, read by the external DataStates package and not by DeepSpeed."
    )
