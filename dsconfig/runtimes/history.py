"""Keys that changed their names in DeepSpeed, and what the old names do today."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dsconfig.report import Edit
from dsconfig.schema.version import Version
from dsconfig.source.document import Document
from dsconfig.source.edit import delete_entry, rename_key
from dsconfig.source.pointer import join

Path = tuple[str, ...]
ZERO = "zero_optimization"


class Renamed(NamedTuple):
    """``new`` is None where a plain rename would not keep the meaning."""

    since: Version
    new: Path | None
    advice: str


class Deprecated(NamedTuple):
    """A key that DeepSpeed warns of. ``edits`` writes the same thing the new way.

    ``works`` says whether a value still does something.
    """

    since: Version
    advice: str
    consequence: Callable[[Any], str]
    edits: Callable[[Document, Any], tuple[Edit, ...]] | None = None
    works: Callable[[Any], bool] = lambda value: True


def _v(text: str) -> Version:
    return Version.parse(text)


_RENAMED: Mapping[Path, Renamed] = {
    ("fp32_allreduce",): Renamed(_v("0.5.8"), None, '"communication_data_type": "fp32"'),
    (ZERO, "find_unused_parameters"): Renamed(
        _v("0.4.0"), None, '"ignore_unused_parameters", which has the opposite meaning'
    ),
    (ZERO, "cpu_offload_params"): Renamed(_v("0.7.0"), None, '"offload_param": {"device": "cpu"}'),
    (ZERO, "cpu_offload_pin_memory"): Renamed(
        _v("0.4.0"), None, '"pin_memory" in offload_param or offload_optimizer'
    ),
    (ZERO, "reduce_scatter_bucket_size"): Renamed(
        _v("0.3.0"), (ZERO, "reduce_bucket_size"), '"reduce_bucket_size"'
    ),
    ("autotuning", "model_info", "hideen_size"): Renamed(
        _v("0.9.3"), ("autotuning", "model_info", "hidden_size"), '"hidden_size"'
    ),
    ("aio", "thread_count"): Renamed(
        _v("0.16.4"), ("aio", "intra_op_parallelism"), '"intra_op_parallelism"'
    ),
    ("seq_parallel_comm_data_type",): Renamed(
        _v("0.16.5"),
        ("seq_parallel_communication_data_type",),
        '"seq_parallel_communication_data_type"',
    ),
    ("flops_profiler", "start_step"): Renamed(
        _v("0.3.12"), ("flops_profiler", "profile_step"), '"profile_step"'
    ),
    ("flops_profiler", "end_step"): Renamed(_v("0.3.12"), None, '"profile_step"'),
    ("lr_scheduler",): Renamed(_v("0.3.0"), ("scheduler",), '"scheduler"'),
    ("gradient_accumulation_dtype",): Renamed(
        _v("0.3.0"), ("data_types", "grad_accum_dtype"), '"grad_accum_dtype" in data_types'
    ),
    ("bf16", "check_overflow"): Renamed(
        _v("0.17.1"), ("bf16", "check_grad_overflow"), '"check_grad_overflow"'
    ),
}


def renamed(path: Path) -> Renamed | None:
    """What became of an old name; None for a path that never was one."""
    return _RENAMED.get(path)


def _moved(target: str, written: str) -> Callable[[Document, Any], tuple[Edit, ...]]:
    """Replace a switch of zero_optimization by a block that says the same."""

    def edits(document: Document, value: Any) -> tuple[Edit, ...]:
        from dsconfig.source.edit import replace_value

        old = join(ZERO, written)
        if target in document.value[ZERO]:
            return ()
        if value is True:
            renaming = rename_key(document, old, target)
            return (*renaming, *replace_value(document, old, {"device": "cpu"}))
        if value is False or value is None:
            return delete_entry(document, old)
        return ()

    return edits


def _gather(document: Document, value: Any) -> tuple[Edit, ...]:
    old = join(ZERO, "stage3_gather_fp16_weights_on_model_save")
    taken = {"gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"}
    if not taken.isdisjoint(document.value[ZERO]):
        return ()
    return rename_key(document, old, "stage3_gather_16bit_weights_on_model_save")


def _bfloat16(document: Document, value: Any) -> tuple[Edit, ...]:
    config = document.value
    return () if "bf16" in config else rename_key(document, "/bfloat16", "bf16")


def _as(what: str) -> Callable[[Any], str]:
    return lambda value: what


def _offload(block: str) -> Callable[[Any], str]:
    return lambda value: f"DeepSpeed takes it for {block}" if value else "it does nothing"


_DEPRECATED: Mapping[Path, Deprecated] = {
    (ZERO, "cpu_offload"): Deprecated(
        _v("0.3.15"),
        '"offload_optimizer": {"device": "cpu"}',
        _offload('"offload_optimizer": {"device": "cpu"}'),
        _moved("offload_optimizer", "cpu_offload"),
        bool,
    ),
    (ZERO, "cpu_offload_param"): Deprecated(
        _v("0.7.0"),
        '"offload_param": {"device": "cpu"}',
        _offload('"offload_param": {"device": "cpu"}'),
        _moved("offload_param", "cpu_offload_param"),
        bool,
    ),
    (ZERO, "cpu_offload_use_pin_memory"): Deprecated(
        _v("0.4.0"),
        '"pin_memory" in offload_param or offload_optimizer',
        _as("its value is dropped"),
        works=lambda value: False,
    ),
    (ZERO, "stage3_gather_fp16_weights_on_model_save"): Deprecated(
        _v("0.6.0"),
        '"stage3_gather_16bit_weights_on_model_save"',
        _as("DeepSpeed takes it for stage3_gather_16bit_weights_on_model_save"),
        _gather,
    ),
    (ZERO, "elastic_checkpoint"): Deprecated(
        _v("0.15.0"),
        '"load_universal": true in checkpoint',
        _as("universal checkpoints replaced it, and at stage 3 it does nothing"),
    ),
    ("bfloat16",): Deprecated(
        _v("0.6.0"), '"bf16"', _as("it is read only where bf16 is absent"), _bfloat16
    ),
}


def deprecated(path: Path) -> Deprecated | None:
    """What a deprecated key does; None for any other."""
    return _DEPRECATED.get(path)
