"""Which parallel degrees each program executes, and how they are set: the only table of it.

Planner, search, ``init``, ``resolve`` and remedies read it. A degree that a program does not
execute has a reason. Releases are those of DeepSpeed underneath.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dsconfig.facts.hf_attributes import has_expert_plan, tensor_plan
from dsconfig.facts.naming import named
from dsconfig.features.table import FAULTY_PLANS, STYLES
from dsconfig.mesh import Degrees
from dsconfig.runtimes.base import (
    ARGUMENTS,
    EXPERT,
    PIPELINE,
    SCRIPT,
    SEQUENCE,
    TENSOR,
    Instruction,
    Runtime,
)
from dsconfig.schema import paths
from dsconfig.schema.version import OLDEST, Version

AXES: Final = ("sequence", "tensor", "expert", "pipeline")
"""In the order in which a search tries them: the cheapest communication first."""
POINTERS: Final = {"sequence": SEQUENCE, "tensor": TENSOR, "expert": EXPERT, "pipeline": PIPELINE}
"""Pointers that stand for what is set outside the config."""
ALL_STAGES: Final = (0, 1, 2, 3)


GATHERED_ON_SAVE: Final = paths.GATHERED_ON_SAVE.pointer
"""Without it, a model that is sharded or split is not saved completely (DSC403)."""


class Support(NamedTuple):
    """How a program executes one degree; not at all if there is a ``reason``.

    ``keys`` are pointers of the config with their values, None for the degree. ``step`` is set
    elsewhere; its text is formatted with the degree and the data-parallel ranks.
    """

    reason: str = ""
    keys: Mapping[str, Any] = {}
    step: Instruction | None = None
    since: Version = OLDEST
    stages: tuple[int, ...] = ALL_STAGES
    later_stages: tuple[Version, tuple[int, ...]] | None = None
    """Stages from a later release on."""
    unequal: bool = False
    """Whether the parts of the ranks may differ in size."""

    def stages_at(self, version: Version) -> tuple[int, ...]:
        """Return the ZeRO stages at a DeepSpeed release."""
        later = self.later_stages
        return later[1] if later is not None and version >= later[0] else self.stages


_AUTOTP = Support(
    keys={paths.AUTOTP_SIZE.pointer: None},
    since=Version(0, 16, 4),
    stages=(0, 1, 2),
    later_stages=(Version(0, 19, 4), ALL_STAGES),
    unequal=True,
)
_AUTOTP_UNDER_ACCELERATE = _AUTOTP._replace(keys={**_AUTOTP.keys, GATHERED_ON_SAVE: True})
_AUTOEP = Support(
    keys={"/expert_parallel/enabled": True, paths.AUTOEP_SIZE.pointer: None},
    since=Version(0, 19, 2),
)
_ULYSSES = (
    "UlyssesSPAttentionHF.register_with_transformers(..., sequence_parallel_size={0[degree]}), its "
    "result as mpu= of initialize, and UlyssesSPDataLoaderAdapter(...)"
)
_SIZES = "sp_size={0[degree]}, dp_shard_size={0[data]}"
_BLOCK = (
    "parallelism_config: {{parallelism_config_sp_size: {0[degree]}, "
    "parallelism_config_dp_shard_size: {0[data]}}}"
)
ULYSSES_OF_ACCELERATE = Version(0, 18, 2)
"""Checked by accelerate 1.15 (``_prepare_deepspeed``)."""
_PIPELINE_MODULE = Support(
    step=Instruction(SCRIPT, "PipelineModule(..., num_stages={0[degree]})"), stages=(0, 1)
)
_NO_PIPELINE = Support("it runs every layer on each rank and creates no PipelineModule")

AUTOEP_FAMILIES: Final[Mapping[str, Version]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "mixtral", "qwen2_moe"), _AUTOEP.since),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_moe"), _AUTOEP.since),
    "minimax_m3_vl_text": Version(0, 19, 8),
}
"""Families with a preset of AutoEP (``auto_ep_presets``), and its first release."""
AUTOTP_STYLES: Final = frozenset(
    (
        *("colwise", "colwise_rep", "colwise_gather_output", "rowwise"),
        *("replicated_with_grad_allreduce", "embedding_rowwise"),
    )
)
"""Styles of a transformers plan that AutoTP converts (``tp_plan_converter.py`` of 0.19.6)."""
STYLES_REQUIRED_SINCE: Final = Version(0, 19, 6)
"""Earlier releases partition a model with other styles by the names of its layers."""
NORMALIZED_EXPERTS: Final = frozenset(("muse_spark_text",))
"""Families whose modules of experts have other parameters too."""
_UNNUMBERED = "without positions, it numbers the tokens of each part from 0"
_UNREGISTERED = "its attention does not call the function registered with transformers"
_MIXING = "layers outside the attention, or its masks, need the whole sequence"
_UNDIVIDED: Final = (
    (
        _UNNUMBERED,
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "bloom"),
        *("cpmant", "ctrl", "fuyu", "gpt_bigcode", "marian", "mbart", "moshi", "mpt"),
        *("mvp", "pegasus", "persimmon", "plbart", "prophetnet", "roformer", "trocr"),
        *("whisper", "xlnet"),
    ),
    (_UNREGISTERED, "doge", "falcon"),
    (
        _MIXING,
        *("axk2", "bailing_hybrid", "bamba", "deepseek_v32", "dots3_note"),
        *("dots3_note_text", "falcon_h1", "gemma4_unified", "glm_moe_dsa"),
        *("granitemoehybrid", "hy_v4", "inkling2_text", "inkling_text", "jamba"),
        *("kimi_linear", "lfm2_moe", "lfm3", "llama4", "llama4_text", "mamba2"),
        *("minimax", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe"),
        *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp"),
        *("qwen4_exp_text", "recurrent_gemma", "xlstm", "zamba", "zamba2", "zaya"),
    ),
)
UNDIVIDED_SEQUENCES: Mapping[str, str] = {
    family: reason for reason, *families in _UNDIVIDED for family in families
}
"""Causal families of transformers 5.23 whose sequences dsengine does not divide, and why."""
NO_AUTOTP: Final = frozenset(
    ("deberta", "flaubert", "fsmt", "gpt2", "led", "longformer", "xlm", "xlnet")
)
"""Families without a plan that AutoTP refuses (``AutoTP.supported``) in every release."""
AUTOTP_SINCE: Final = _AUTOTP.since

TABLE: Mapping[str, Mapping[str, Support]] = {
    "deepspeed": {
        "sequence": Support(step=Instruction(SCRIPT, _ULYSSES), since=Version(0, 17, 0)),
        "tensor": _AUTOTP,
        "expert": _AUTOEP,
        "pipeline": _PIPELINE_MODULE,
    },
    "transformers": {
        "sequence": Support(
            step=Instruction(ARGUMENTS, f"parallelism_config=ParallelismConfig({_SIZES})"),
            since=ULYSSES_OF_ACCELERATE,
        ),
        "tensor": _AUTOTP_UNDER_ACCELERATE,
        "expert": _AUTOEP,
        "pipeline": _NO_PIPELINE,
    },
    "accelerate": {
        "sequence": Support(
            step=Instruction("the accelerate config", _BLOCK),
            since=ULYSSES_OF_ACCELERATE,
        ),
        "tensor": _AUTOTP_UNDER_ACCELERATE,
        "expert": _AUTOEP,
        "pipeline": _NO_PIPELINE,
    },
    "dsengine": {
        "sequence": Support(
            keys={"/sequence_parallel_size": None},
            step=Instruction(SCRIPT, "UlyssesSPDataLoaderAdapter(...)"),
        ),
        "tensor": Support(keys={paths.AUTOTP_SIZE.pointer: None}),
        "expert": Support(keys=_AUTOEP.keys),
        "pipeline": _PIPELINE_MODULE,
    },
}


def support(program: Runtime, axis: str) -> Support:
    """Return how a program, at its release, executes a degree."""
    found = TABLE[program.name][axis]
    if program.runs_deepspeed and not found.reason and program.version < found.since:
        return Support(f"it requires DeepSpeed {found.since} or later")
    return found


def unconverted_styles(family: str | None) -> str:
    """Return the styles of a plan of transformers 5.23 that AutoTP does not convert; "" if it
    converts all of them."""
    return ", ".join(sorted(set(tensor_plan(family).values()) - AUTOTP_STYLES))


def refused_by_autotp(family: str | None, version: Version) -> str:
    """Return why AutoTP of a DeepSpeed release refuses a model of transformers 5.23; "" if it does
    not."""
    if family in NO_AUTOTP:
        return "it has no tensor-parallel plan"
    styles = unconverted_styles(family) if version >= STYLES_REQUIRED_SINCE else ""
    return f"its plan has the styles {styles}" if styles else ""


def refused_plan(program: Runtime, family: str | None) -> str:
    """Return why a program does not split the layers of a model by its own plan; "" if it does."""
    if program.runs_deepspeed:
        refused = refused_by_autotp(family, program.version)
        return refused and f"AutoTP refuses {family}: {refused}"
    if not tensor_plan(family):
        return f"{family or 'the model'} has no tensor-parallel plan: it would need layer_specs"
    if fault := FAULTY_PLANS.get(family or ""):
        return f"dsengine does not split {family}: its plan {fault}"
    styles = ", ".join(sorted(set(tensor_plan(family).values()) - STYLES))
    return styles and f"dsengine does not split {family}: its plan has the styles {styles}"


def refused_sequence(program: Runtime, family: str | None) -> str:
    """Return why dsengine does not divide the sequences of a family; "" if it does."""
    if program.runs_deepspeed or family is None or family not in UNDIVIDED_SEQUENCES:
        return ""
    why = UNDIVIDED_SEQUENCES[family]
    return f"dsengine does not divide the sequences of {family} ({why})"


def refused_experts(program: Runtime, family: str | None) -> str:
    """Return why a program does not divide the experts of a model without patterns; "" if it
    does."""
    if program.runs_deepspeed:
        known = family in AUTOEP_FAMILIES and program.version >= AUTOEP_FAMILIES[family]
        return "" if known else f"AutoEP has no preset for {family}: {_NEEDS_PATTERNS}"
    if family in NORMALIZED_EXPERTS:
        return f"dsengine does not divide the experts of {family}, which share a norm"
    known = has_expert_plan(family)
    return "" if known else f"{family} has no expert-parallel plan: {_NEEDS_PATTERNS}"


_NEEDS_PATTERNS = "it would need expert_parallel patterns"


def executes(program: Runtime, axis: str) -> bool:
    """Return whether a program, at its release, executes a degree."""
    return not support(program, axis).reason


def not_executed(program: Runtime, degrees: Degrees) -> str:
    """Return the first argument whose degree a program does not execute, and why; "" if it executes
    all of them."""
    used = [axis for axis in AXES if getattr(degrees, axis) > 1]
    for axis in used:
        degree, reason = getattr(degrees, axis), support(program, axis).reason
        if reason:
            given = named(f"{axis}_parallel", degree)
            return f"{given} is not executed by {program.name}: {reason}"
    for axis in ("expert", "pipeline"):
        others = [each for each in used if each != axis]
        if axis in used and others and not program.runs_deepspeed:
            return (
                f"{named(f'{axis}_parallel', getattr(degrees, axis))} is not executed by "
                f"{program.name}: it does not combine it with {named(f'{others[0]}_parallel')}"
            )
    return ""


def requires_equal_parts(program: Runtime, axis: str) -> bool:
    """Return whether a program executes a degree, but only if it divides the model evenly."""
    found = support(program, axis)
    return not found.reason and not found.unequal


def stages_under(program: Runtime, degrees: Degrees) -> tuple[int, ...]:
    """Return the ZeRO stages at which a program executes all of these degrees."""
    used = [support(program, axis) for axis in AXES if getattr(degrees, axis) > 1]
    every = [each.stages_at(program.version) for each in used]
    return tuple(stage for stage in ALL_STAGES if all(stage in stages for stages in every))


def settings_of(program: Runtime, degrees: Degrees, world_size: int) -> dict[str, Any]:
    """Return the values, by pointer, with which a program executes these degrees.

    Keys of the config, and pointers that stand for settings elsewhere.
    """
    found: dict[str, Any] = {}
    for axis in AXES:
        degree = getattr(degrees, axis)
        if degree == 1:
            continue
        supported = support(program, axis)
        found |= {key: degree if value is None else value for key, value in supported.keys.items()}
        if supported.step is not None:
            found[POINTERS[axis]] = {"degree": degree, "data": degrees.samples(world_size)}
    return found


def keys_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the settings that belong in the config."""
    return {key: value for key, value in settings.items() if key not in POINTERS.values()}


def outside(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the settings that belong elsewhere."""
    return {key: value for key, value in settings.items() if key in POINTERS.values()}


def label_of(degrees: Degrees) -> str:
    """Return ``sequence parallel 8, ``; "" if nothing is divided."""
    parts = (f"{axis} parallel {getattr(degrees, axis)}" for axis in AXES)
    used = (part for axis, part in zip(AXES, parts, strict=True) if getattr(degrees, axis) > 1)
    return "".join(f"{part}, " for part in used)


def steps_of(program: str) -> dict[str, Instruction]:
    """Return what a program takes from elsewhere than the config, by pointer."""
    rows = TABLE[program].items()
    return {POINTERS[axis]: each.step for axis, each in rows if each.step is not None}
