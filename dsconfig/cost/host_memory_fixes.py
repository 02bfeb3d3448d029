"""Changes that make offloaded states fit the host memory."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.fit import verdict_on
from dsconfig.facts.facts import Facts
from dsconfig.report.sizes import gib
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective, Offload, Tier
from dsconfig.schema import catalogue
from dsconfig.schema.paths import OFFLOAD_OPTIMIZER

SMALL_TILES = 1_000_000
MOST_NODES = 64
"""Upper bound of suggested nodes."""


def ways_to_fit(
    effective: Effective,
    facts: Facts,
    available: int,
    *,
    in_process: bool = False,
    program: Runtime | None = None,
) -> list[str]:
    """Return settings that need at most ``available`` bytes of a node, or of each of its processes.

    Each is a sentence with the memory it needs. ``program`` (dsengine if None) adds what it takes
    outside the config.
    """
    runtime = program or "dsengine"
    now_option = estimate_option(effective, facts, runtime=runtime)
    keeps_gpus = not in_process and all(fit.fits for fit in now_option.fits)

    def needed(config: Effective, nodes: int | None = None) -> int:
        """Return the bytes that are needed; more than are available if a GPU that can hold its
        share now cannot then."""
        ranks, here = facts.world_size or 1, facts.nodes or 1
        per_node = max(1, ranks // here)
        there = here if nodes is None else nodes
        there_facts = replace(facts, world_size=per_node * there, nodes=there)
        option = estimate_option(config, there_facts, runtime=runtime)
        held = option.host.bytes if in_process else option.host.peak_bytes
        if keeps_gpus and not all(fit.fits for fit in option.fits):
            return max(held, available + 1)
        return held // per_node if in_process else held

    ways = [
        f"set {what} ({gib(amount)})"
        for what, config in _settings(effective, needed, available, program)
        if (amount := needed(config)) <= available
    ]
    if program is not None:
        ways += _eight_bit_on_the_gpu(effective, facts, program)
    now = facts.nodes or 1
    fewest = max(now + 1, now * -(-needed(effective) // max(1, available)))
    for nodes in range(fewest, min(fewest + 2, MOST_NODES + 1)):
        if (amount := needed(effective, nodes)) <= available:
            return [*ways, f"train on {nodes} nodes ({gib(amount)})"]
    return ways


def _eight_bit_on_the_gpu(effective: Effective, facts: Facts, program: Runtime) -> Iterator[str]:
    """Yield the change to 8-bit optimizer states on the GPU, if they fit there.

    dsengine refuses to offload 8-bit states, and DeepSpeed does unless zero_force_ds_cpu_optimizer
    is false.
    """
    zero, optimizer = effective.zero, program.eight_bit_optimizer
    if optimizer is None or zero.offload_optimizer is None or facts.on_cpu:
        return
    on_gpu = replace(zero, offload_optimizer=None, offload_param=None)
    changed = replace(effective, zero=on_gpu, optimizer=None)
    facts = replace(facts, client_optimizer="AdamW8bit")
    option = estimate_option(changed, facts, runtime=program)
    if not facts.device_bytes or not verdict_on(option, changed, facts).fits:
        return
    blocks = ["offload_optimizer"] + ["offload_param"] * (zero.offload_param is not None)
    blocks += ["optimizer"] * (effective.optimizer is not None)
    steps = [f"delete {' and '.join(blocks)} from the config", str(optimizer)]
    if not program.supplies_optimizer:
        steps.insert(1, "set zero_allow_untested_optimizer to true")
    needs = f"{gib(option.host.peak_bytes)}; {gib(option.device.needed_bytes)} per GPU"
    yield f"use an 8-bit optimizer on the GPU: {'; '.join(steps)} ({needs})"


def _settings(
    effective: Effective,
    needed: Callable[[Effective], int],
    available: int,
    program: Runtime | None,
) -> Iterator[tuple[str, Effective]]:
    """Yield candidates: a description and the config."""
    zero = effective.zero
    offload, parameters = zero.offload_optimizer, zero.offload_param
    stage = "" if zero.stage == 3 else "stage to 3 and "

    def with_optimizer(new: Offload) -> Effective:
        return replace(effective, zero=replace(zero, stage=3, offload_optimizer=new))

    if offload is not None and offload.tier is Tier.HOST:
        on_nvme = replace(offload, tier=Tier.NVME, nvme_path=offload.nvme_path or "an nvme_path")
        path = "" if offload.nvme_path else " with an nvme_path"
        yield f"{stage}offload_optimizer.device to nvme{path}", with_optimizer(on_nvme)

        def with_ratio(share: float) -> Effective:
            return with_optimizer(replace(offload, ratio=share))

        # Parameters are not split between tiers: the memory of a share falls in steps.
        shares = (each / 100 for each in range(int(100 * offload.ratio), 0, -1))
        less = (share for share in shares if share < offload.ratio)
        ratio = catalogue.key(f"{OFFLOAD_OPTIMIZER}.ratio")
        is_read = program is None or ratio is None or ratio.read_at(program.version)
        less = less if is_read else iter(())
        share = next((share for share in less if needed(with_ratio(share)) <= available), None)
        if share is not None:
            yield f"{stage}offload_optimizer.ratio to {share:.2f}", with_ratio(share)
    if parameters is not None and parameters.tier is Tier.HOST and parameters.pin_memory:
        pageable = replace(zero, offload_param=replace(parameters, pin_memory=False))
        yield "offload_param.pin_memory to false", replace(effective, zero=pageable)
    small = replace(zero, sub_group_size=min(zero.sub_group_size, SMALL_TILES))
    if zero.optimizer_tier is Tier.NVME and small != zero:
        yield f"sub_group_size to {SMALL_TILES}", replace(effective, zero=small)
    if parameters is not None and parameters.tier is Tier.NVME and parameters.max_in_cpu:
        emptied = replace(small, offload_param=replace(parameters, max_in_cpu=0))
        yield (
            f"sub_group_size to {small.sub_group_size} and offload_param.max_in_cpu to 0",
            replace(effective, zero=emptied),
        )
