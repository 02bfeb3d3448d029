"""Resolve all other keys: clipping, dtypes, activation checkpointing, defaults."""

from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.resolver.draft import Draft, auto_paths
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.base import AutoHandling
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath

with lazy_imports():
    from dsconfig.schema import catalogue


def fill(draft: Draft) -> None:
    """Resolve the remaining "auto" values; report those without rule and default."""
    reported = {found.pointer for found in draft.findings}
    for path in auto_paths(draft.config):
        # Problems of the batch triple are reported at one of its keys.
        if path in paths.BATCH or path in draft.unresolved or path.pointer in reported:
            continue
        _RULES.get(path, _default)(draft, path)


def _clipping(draft: Draft, path: KeyPath) -> None:
    training = draft.facts.training
    if training is not None and training.max_grad_norm is not None:
        draft.set(
            path, training.max_grad_norm, Source.TRAINING, "max_grad_norm of the training run"
        )
    else:
        draft.set(path, 1.0, Source.DEFAULT, "clip the global norm at 1.0, the usual value")


def _communication(draft: Draft, path: KeyPath) -> None:
    dtype = half_precision(draft) or "fp32"
    rule = "gradients are communicated in the training precision"
    draft.set(path, dtype, Source.DERIVED, rule, precision=dtype)


def _accumulation_dtype(draft: Draft, path: KeyPath) -> None:
    precision = half_precision(draft) or "fp32"
    rule = {
        "bf16": "bf16 lacks the precision to accumulate many micro batches",
        "fp16": "dtype of the model",
        "fp32": "model in fp32",
    }[precision]
    dtype = "fp32" if precision == "bf16" else precision
    draft.set(path, dtype, Source.DERIVED, rule, precision=precision)


def _checkpoints(draft: Draft, path: KeyPath) -> None:
    """Use the number of layers, or null if it is unknown."""
    shape = draft.facts.architecture
    if shape is None:
        draft.set(path, None, Source.DEFAULT, "required only with contiguous_memory_optimization")
    else:
        draft.set(path, shape.layers, Source.MODEL, "one per layer", layers=shape.layers)


def _partition(draft: Draft, path: KeyPath) -> None:
    degree = draft.facts.degrees.tensor
    rule = "saved activations are partitioned if there are several tensor-parallel ranks"
    draft.set(path, degree > 1, Source.DERIVED, rule, tensor_parallel=degree)


def _default(draft: Draft, path: KeyPath) -> None:
    known = catalogue.find(path)
    if draft.runtime.on_auto(path, draft.config) is AutoHandling.NATIVE:
        return
    if known is not None and not known.required:
        default: Any = known.default_at(draft.runtime.version)
        if default is None and known.shape.nullable:
            draft.set(path, None, Source.DEFAULT, "null, the default")
            return
        if default not in (None, "auto"):
            draft.set(path, default, Source.DEFAULT, "default of this key")
            return
    draft.report(
        "DSC152",
        path,
        '"auto" cannot be resolved: this key has neither a default nor a rule',
        "write a value, or delete the key",
    )


def half_precision(draft: Draft) -> str | None:
    """Return ``bf16`` or ``fp16`` if enabled, else None."""
    switches = reversed(paths.HALF_PRECISIONS.items())  # bf16 first
    return next((name for name, path in switches if draft.given(path) is True), None)


_RULES = {
    paths.GRADIENT_CLIPPING: _clipping,
    paths.COMMUNICATION_DTYPE: _communication,
    paths.SEQUENCE_COMMUNICATION_DTYPE: _communication,
    paths.GRAD_ACCUM_DTYPE: _accumulation_dtype,
    paths.ACTIVATION_CHECKPOINTING / "partition_activations": _partition,
    paths.ACTIVATION_CHECKPOINTING / "number_checkpoints": _checkpoints,
}
