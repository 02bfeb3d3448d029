"""offload_param, offload_optimizer and aio."""

from dsconfig.planner.coverage.rules import (
    OFF,
    OPTIMIZER_OFFLOADED,
    OPTIMIZER_ON_NVME,
    PARAMETERS_OFFLOADED,
    PARAMETERS_ON_NVME,
    SHARDED,
    Condition,
    Rule,
    equals,
    honoured,
    inert,
    refused,
    stages,
)

_OPTIMIZER = "zero_optimization.offload_optimizer"
_PARAM = "zero_optimization.offload_param"
_ON_HOST = "states stay in memory; only the NVMe tier uses it"
_PAGE_CACHE = "shards on NVMe are mapped files; the kernel's page cache stages them"


def _on_nvme(by: str, where: Condition) -> Rule:
    return honoured(by, where) + inert(_ON_HOST)


ON_ANY_NVME = Condition(
    "when a tier is on NVMe",
    lambda value, config: (
        OPTIMIZER_ON_NVME.test(value, config) or PARAMETERS_ON_NVME.test(value, config)
    ),
)

RULES = {
    f"{_OPTIMIZER}.device": inert("the optimizer stays on the device", equals("none"))
    + honoured(
        "master, moments and update on this tier; gradients stay on the device until the step",
        SHARDED,
    )
    + inert("at stage 0 nothing is offloaded"),
    f"{_OPTIMIZER}.nvme_path": _on_nvme("one file per rank and tile", OPTIMIZER_ON_NVME),
    f"{_OPTIMIZER}.buffer_count": _on_nvme("tensors that are staged at a time", OPTIMIZER_ON_NVME),
    f"{_OPTIMIZER}.pin_memory": honoured("page-locked host memory", OPTIMIZER_OFFLOADED)
    + inert("nothing is offloaded"),
    f"{_OPTIMIZER}.pipeline_read": _on_nvme("the next tile is read ahead", OPTIMIZER_ON_NVME),
    f"{_OPTIMIZER}.pipeline_write": _on_nvme("the last tile is written behind", OPTIMIZER_ON_NVME),
    f"{_OPTIMIZER}.fast_init": inert("states are created in place; there is nothing to speed up"),
    f"{_OPTIMIZER}.ratio": inert("everything is offloaded", equals(1.0))
    + honoured("this share of the elements is updated on the host", OPTIMIZER_OFFLOADED)
    + inert("nothing is offloaded"),
    f"{_OPTIMIZER}.super_offload": inert("off", OFF)
    + refused("SuperOffload is not built; remove the key"),
    f"{_OPTIMIZER}.cpuadam_cores_perc": inert("only SuperOffload's worker reads it"),
    f"{_PARAM}.device": inert("parameters stay on the device", equals("none"))
    + honoured("parameter shards rest on this tier", stages(3))
    + inert("parameters are offloaded only at stage 3"),
    f"{_PARAM}.nvme_path": _on_nvme("a mapped file per rank and tensor", PARAMETERS_ON_NVME),
    f"{_PARAM}.buffer_count": inert(_PAGE_CACHE),
    f"{_PARAM}.buffer_size": inert(_PAGE_CACHE),
    f"{_PARAM}.max_in_cpu": _on_nvme("elements kept in host memory", PARAMETERS_ON_NVME),
    f"{_PARAM}.pin_memory": honoured("page-locked host memory", PARAMETERS_OFFLOADED)
    + inert("nothing is offloaded"),
    "aio.block_size": _on_nvme("bytes of one read or write", ON_ANY_NVME),
    "aio.queue_depth": inert("the operating system queues reads and writes of the pool"),
    "aio.intra_op_parallelism": _on_nvme("threads that read and write", ON_ANY_NVME),
    "aio.thread_count": inert("renamed in DeepSpeed 0.16.4; write aio.intra_op_parallelism"),
    "aio.single_submit": inert("a switch of libaio, which is not used"),
    "aio.overlap_events": inert("a switch of libaio, which is not used"),
    "aio.use_gds": inert("off", OFF) + refused("GPUDirect Storage is not built; remove the key"),
}
