"""The keys of a config that a conversion does not represent, with what to do about them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from dsconfig.facts.facts import Facts
from dsconfig.features.table import Status
from dsconfig.planner.coverage import cover
from dsconfig.report import writers
from dsconfig.resolver.draft import auto_paths
from dsconfig.runtimes.degrees import with_degrees
from dsconfig.runtimes.effective import Effective, Tier
from dsconfig.schema import find
from dsconfig.schema.key_index import canonical_path
from dsconfig.schema.markers import AUTO
from dsconfig.source.pointer import copied, dotted, lookup, split, value_at

NO_EQUIVALENT = "Not converted; set these in the training script or drop them:"
SPEED = "Not converted, affects speed and memory only: the target has its own schedule:"
UNUSED = "Not converted: without effect in this config:"
UNREAD = "Not converted: DeepSpeed does not read these keys either:"
SCHEDULING = (
    *(
        f"zero_optimization.{name}"
        for name in (
            "allgather_bucket_size",
            "allgather_partitions",
            "contiguous_gradients",
            "ignore_unused_parameters",
            "overlap_comm",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "stage3_model_persistence_threshold",
            "stage3_param_persistence_threshold",
            "stage3_prefetch_bucket_size",
            "reduce_bucket_size",
            "reduce_scatter",
            "round_robin_gradients",
            "sub_group_size",
            "offload_*.buffer_*",
            "offload_*.fast_init",
            "offload_*.max_in_cpu",
            "offload_*.pin_memory",
            "offload_*.pipeline*",
        )
    ),
    "aio.*",
)
"""Keys that change when and in which pieces data moves, but no result."""


def unconverted(
    effective: Effective, converted: Collection[str], unread: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the values by dotted path, in groups by what to do about them; no empty groups.

    ``converted``: patterns of the dotted paths that the target represents, with current names;
    ``unread``: paths of "auto" values that it does not read.
    """
    groups: dict[str, dict[str, Any]] = {}
    for path in unread:
        title = SPEED if is_scheduling(path) else NO_EQUIVALENT
        groups.setdefault(title, {})[path] = AUTO
    for row in cover.coverage(effective):
        path = canonical_path(split(row.pointer)).dotted
        if any(fnmatchcase(path, pattern) for pattern in converted):
            continue
        if find(split(row.pointer)) is None:
            title = UNREAD
        elif row.status is Status.INERT:
            title = UNUSED
        elif is_scheduling(path):
            title = SPEED
        else:
            title = NO_EQUIVALENT
        value = lookup(effective.config, row.pointer)
        if value == {} and any(each.startswith(f"{dotted(row.pointer)}.") for each in unread):
            continue
        groups.setdefault(title, {})[dotted(row.pointer)] = value
    order = (NO_EQUIVALENT, SPEED, UNUSED, UNREAD)
    return {title: groups[title] for title in order if title in groups}


def offload_patterns(effective: Effective) -> list[str]:
    """Return the patterns of offload devices for a target that keeps states in host memory, but
    not on NVMe."""
    tiers = {"optimizer": effective.zero.optimizer_tier, "param": effective.zero.parameter_tier}
    return [
        f"zero_optimization.offload_{part}.device"
        for part, tier in tiers.items()
        if tier is not Tier.NVME
    ]


def tensor_degree(effective: Effective) -> int:
    """Return the ranks over which the config splits layers."""
    return with_degrees(Facts(), effective.config).degrees.tensor


def comment_lines(groups: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the groups as comments of Python, YAML and TOML, one line per key."""
    for title, values in groups.items():
        yield writers.comment(title)
        yield from (writers.comment_of_value(path, value) for path, value in values.items())


def is_scheduling(path: str) -> bool:
    """Return whether a key changes when and in which pieces data moves, but no result."""
    return any(fnmatchcase(path, pattern) for pattern in SCHEDULING)


def without_autos(
    config: Mapping[str, Any], reads: Callable[[str], bool]
) -> tuple[dict[str, Any], list[str]]:
    """Return a copy of a config without the "auto" values that the target does not read, and their
    dotted paths.

    Raises ValueError for one that it reads.
    """
    reduced = copied(dict(config))
    unread: list[str] = []
    for path in list(auto_paths(reduced)):
        if reads(canonical_path(path).dotted):
            raise ValueError(f'{path} is still "auto"')
        value_at(reduced, path[:-1]).pop(path[-1])
        unread.append(path.dotted)
    return reduced, unread
