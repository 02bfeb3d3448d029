"""The components of a dsengine run, each with the key that causes it."""

from dsconfig.cost.categories import ACCUMULATION, OPTIMIZER, STAGE, ZERO
from dsconfig.cost.timeline import Category
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.effective import Precision

BUILT = Category("model as built", "", "fp32, before sharding")
NARROWED = Category(
    "a unit in the compute dtype",
    OPTIMIZER,
    "compute-dtype bytes per element, while it is sharded: its masters are on the host",
)
BROADCAST = Category(
    "broadcast of the first rank's weights", "", "flattened tensors, 256 MiB at a time"
)
MASTER = Category(
    "fp32 master weights",
    STAGE,
    "4 bytes per trained element, divided by the ranks from stage 1; in fp32 part of the weights",
)
BF16_MASTER = Category(
    "bf16 master weights",
    "/bf16/bf16_master_weights_and_grads",
    "2 bytes per trained element, divided by the ranks from stage 1",
)
TRAINED = Category(
    "trained weights",
    STAGE,
    "2 bytes per trained element, divided by the ranks from stage 1; the optimizer updates them",
)


def master(job: Workload) -> Category:
    """Return the category of the weights that the optimizer updates."""
    if job.copies_masters or not job.mixed:
        return MASTER if job.master_width == Precision.FP32.bytes else BF16_MASTER
    return TRAINED


SHARDS = Category(
    "weight shards",
    OPTIMIZER,
    "compute-dtype bytes per element / ranks; the masters are on the host",
)
FROZEN = Category(
    "frozen weight shards",
    STAGE,
    "compute-dtype bytes per element, divided by the ranks from stage 1",
)
TILES = Category(
    "fp32 weights and gradients of tiles",
    f"{OPTIMIZER}/ratio",
    "4 + 4 bytes per element of the tiles that stay on the device",
)
UNSHARDED = Category("unsharded weights", STAGE, "compute-dtype bytes per element below stage 3")
PERSISTENT = Category(
    "persistent units",
    f"{ZERO}/stage3_param_persistence_threshold",
    "units with only small parameters stay unsharded",
)
GATHERED = Category(
    "gathered units", f"{ZERO}/stage3_max_reuse_distance", "compute-dtype bytes per element in use"
)
GATHER_BUFFER = Category(
    "gather buffer",
    f"{ZERO}/reduce_bucket_size",
    "a second copy of one unit, while it is gathered",
    stream="gather",
    communicated=True,
)
SHARDED_GRADIENTS = Category(
    "gradient shards",
    STAGE,
    "bytes of a master weight per owned element, backward to step",
    stream="reduce",
)
GRADIENTS = Category(
    "gradients of a unit", STAGE, "compute-dtype bytes per element until they are reduced"
)
KEPT_GRADIENTS = Category(
    "gradients not yet reduced", ACCUMULATION, "compute-dtype bytes per element between micro steps"
)
SUMS = Category(
    "accumulated gradients of a step",
    "/data_types/grad_accum_dtype",
    "at stage 0, per trainable element, if it is not the dtype of the model",
)
CAST_INPUT = Category(
    "gradients cast for communication",
    "/communication_data_type",
    "one unit, summed in a wider dtype",
)
BUCKETS = Category(
    "gradient buckets",
    f"{ZERO}/reduce_bucket_size",
    "compute-dtype bytes per trainable element, the entire run",
)
REDUCE_INPUT = Category(
    "reduce-scatter input", "/communication_data_type", "one unit", communicated=True
)
REDUCE_OUTPUT = Category(
    "reduce-scatter output",
    "/communication_data_type",
    "one unit / ranks",
    stream="reduce",
    communicated=True,
)
EXCHANGED = Category(
    "buffers of the exchange", "", "on CPU, over gloo: a unit to send, its shards from other ranks"
)
CAST_SHARDS = Category(
    "shards cast for a gather", STAGE, "compute-dtype bytes per element of a unit / ranks"
)
PACKED = Category(
    "small parameters, packed", STAGE, "parameters below 1 MiB, gathered together after the step"
)
ROUNDED = Category(
    "gradients in the accumulation dtype", "/data_types/grad_accum_dtype", "per owned element"
)
STEP_GRADIENT = Category("fp32 gradient for the step", "", "4 bytes per element")
