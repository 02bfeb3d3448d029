"""The components of a DeepSpeed run, each with the key that causes it."""

from dsconfig.cost.categories import ACCUMULATION, OPTIMIZER, PER_OWNED, STAGE, ZERO
from dsconfig.cost.timeline import Category

WEIGHTS = Category(
    "weights", STAGE, "compute-dtype bytes per element; divided by the ranks at stage 3"
)
CREATED = Category(
    "model as built",
    "",
    "compute-dtype bytes per element, full model before sharding: no zero.Init",
)
FLAT_WEIGHTS = Category(
    "flat copy of the weights",
    STAGE,
    "compute-dtype bytes per trainable element, while they are flattened",
)
KEPT_LINEAR = Category(
    "gathered weights kept for backward",
    f"{ZERO}/memory_efficient_linear",
    "compute-dtype bytes per element of each linear layer, without stage 3's own linear function",
    stream="gather",
)
CREATION_GATHER = Category(
    "gather of one parameter at creation",
    STAGE,
    "compute-dtype bytes per element of the largest one, while its hook is registered",
)
PASSING_MASTER = Category(
    "fp32 masters cast on the device",
    OPTIMIZER,
    "4 bytes per owned element, before 0.17.0",
)
MASTER = Category("fp32 master weights", STAGE, PER_OWNED)
ZERO_GRADIENT = Category(
    "zero gradient at creation", "", "4 bytes per owned element, to create the state"
)
GRADIENTS = Category("gradients", STAGE, "compute-dtype bytes per element not yet reduced")
PARTITION = Category(
    "gradient partition", STAGE, "every parameter that touches the partition, in full"
)
GRADIENT_SHARDS = Category(
    "gradient shards", STAGE, "accumulation-dtype bytes per owned element, kept between steps"
)
BACKLOG = Category(
    "gradients awaiting the reduce stream",
    f"{ZERO}/overlap_comm",
    "up to three buckets on CUDA: one in progress and two outstanding events",
)
GLOO_COPY = Category("gloo's copy of the bucket", "", "on CPU: reduce-scatter uses a copy")
ACCUMULATED = Category("accumulated gradients", ACCUMULATION, "a second partition")
FULL_GRADIENTS = Category(
    "fp32 gradients of all parameters",
    "/data_types/grad_accum_dtype",
    "4 bytes per element, all ranks",
)
BUCKET = Category(
    "reduce bucket",
    f"{ZERO}/reduce_bucket_size",
    "reduce_bucket_size elements, allocated in full",
    communicated=True,
)
SECOND_BUCKET = Category(
    "second reduce bucket",
    f"{ZERO}/overlap_comm",
    "another reduce_bucket_size elements",
    communicated=True,
)
STAGING = Category(
    "flattened bucket",
    f"{ZERO}/reduce_bucket_size",
    "contents of the bucket, during a reduction",
    stream="reduce",
    communicated=True,
)
CAST = Category(
    "bucket cast for communication",
    "/communication_data_type",
    "contents of the bucket, cast",
    stream="reduce",
    communicated=True,
)
GRADIENT_NORM = Category(
    "gradient in fp64 for its norm",
    OPTIMIZER,
    "8 bytes per owned element of the largest gradient, on its way to the host",
    stream="reduce",
)
SENT_GRADIENT = Category(
    "gradient on its way to the host",
    OPTIMIZER,
    "one gradient while it is copied to the host",
    stream="reduce",
)
ORTHOGONALIZED = Category(
    "Muon's updates",
    "/optimizer/type",
    "compute-dtype bytes per element of a partition's matrices, in full, and Newton-Schulz on the "
    "largest",
)
STAGED_MOMENTUM = Category(
    "Muon's staged momentum",
    "/optimizer/type",
    "compute-dtype bytes per element of a partition's matrices, in full: a copy that the step may "
    "discard",
)
STEP_GRADIENT = Category("fp32 gradient for the step", "", "4 bytes per element being updated")
FLAT_GRADIENT = Category("flattened gradient", "", "elements being updated, flattened")
GATHERED = Category(
    "gathered parameters",
    f"{ZERO}/stage3_max_reuse_distance",
    "unsharded parameters around their use",
    stream="gather",
)
PERSISTENT = Category(
    "persistent parameters",
    f"{ZERO}/stage3_param_persistence_threshold",
    "parameters below the threshold stay unsharded",
    stream="gather",
)
GATHER_COPY = Category(
    "gather buffer",
    f"{ZERO}/stage3_prefetch_bucket_size",
    "a second copy of one gather",
    stream="gather",
    communicated=True,
)
SECONDARY = Category(
    "secondary shards (hpZ)",
    f"{ZERO}/zero_hpz_partition_size",
    "compute-dtype bytes per element / zero_hpz_partition_size, from its first release to the step",
)
OFFLOAD_SCRATCH = Category(
    "offload scratch", OPTIMIZER, "compute-dtype bytes x the largest parameter"
)
OVERFLOW_CHECK = Category(
    "overflow test",
    "/fp16",
    "the largest gradient in fp32 and its masks: 4 or 11 bytes per element",
)
SENT_OVERFLOW_CHECK = OVERFLOW_CHECK._replace(pointer=OPTIMIZER)
"""The test of a gradient on its way to the host, in every dtype."""
