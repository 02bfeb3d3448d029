"""The components of a DeepSpeed run, each with the key that causes it."""

from dsconfig.cost.categories import ACCUMULATION, OPTIMIZER, PER_OWNED, STAGE, ZERO
from dsconfig.cost.timeline import Category

WEIGHTS = Category("weights", STAGE, "w per element; divided by the ranks at stage 3")
CREATED = Category("model as built", "", "w per element, whole before it is divided: no zero.Init")
FLAT_WEIGHTS = Category(
    "flat copy of the weights", STAGE, "w per trainable element, while they are laid together"
)
KEPT_LINEAR = Category(
    "gathered weights kept for backward",
    f"{ZERO}/memory_efficient_linear",
    "w per element of each linear map, without stage 3's own linear function",
    stream="gather",
)
CREATION_GATHER = Category(
    "gather of one parameter at creation",
    STAGE,
    "w per element of the largest one, where its hook is made",
)
PASSING_MASTER = Category(
    "fp32 masters passing",
    OPTIMIZER,
    "4 per owned element, cast on the device before 0.17.0",
)
MASTER = Category("fp32 master weights", STAGE, PER_OWNED)
ZERO_GRADIENT = Category(
    "zero gradient at creation", "", "4 per owned element, to create the state"
)
GRADIENTS = Category("gradients", STAGE, "w per element not yet reduced")
PARTITION = Category(
    "gradient partition", STAGE, "every parameter that touches the owned part, in full"
)
GRADIENT_SHARDS = Category(
    "gradient shards", STAGE, "accumulation dtype per owned element, held between steps too"
)
BACKLOG = Category(
    "gradients awaiting the reduce stream",
    f"{ZERO}/overlap_comm",
    "up to three buckets on CUDA: one in work and two events outstanding",
)
GLOO_COPY = Category("gloo's copy of the bucket", "", "on CPU: reduce-scatter works on a copy")
ACCUMULATED = Category("accumulated gradients", ACCUMULATION, "a second partition")
FULL_GRADIENTS = Category(
    "fp32 gradients of all parameters", "/data_types/grad_accum_dtype", "4 per element, all ranks"
)
BUCKET = Category(
    "reduce bucket",
    f"{ZERO}/reduce_bucket_size",
    "reduce_bucket_size elements, allocated whole",
    communicated=True,
)
SECOND_BUCKET = Category(
    "second reduce bucket",
    f"{ZERO}/overlap_comm",
    "reduce_bucket_size elements once more",
    communicated=True,
)
STAGING = Category(
    "flattened bucket",
    f"{ZERO}/reduce_bucket_size",
    "what is in the bucket, during a reduction",
    stream="reduce",
    communicated=True,
)
CAST = Category(
    "bucket cast for communication",
    "/communication_data_type",
    "what is in the bucket, cast",
    stream="reduce",
    communicated=True,
)
GRADIENT_NORM = Category(
    "gradient in fp64 for its norm",
    OPTIMIZER,
    "8 per owned element of the largest gradient, on its way to the host",
    stream="reduce",
)
SENT_GRADIENT = Category(
    "gradient on its way to the host",
    OPTIMIZER,
    "one gradient as it goes to the host",
    stream="reduce",
)
ORTHOGONALIZED = Category(
    "Muon's updates",
    "/optimizer/type",
    "w per element of the matrices of a partition, in full, and Newton-Schulz on the largest",
)
STAGED_MOMENTUM = Category(
    "Muon's staged momentum",
    "/optimizer/type",
    "w per element of the matrices of a partition, in full: a copy that a step may discard",
)
STEP_GRADIENT = Category("fp32 gradient for the step", "", "4 per element being updated")
FLAT_GRADIENT = Category("flattened gradient", "", "every element being updated, flattened")
GATHERED = Category(
    "gathered parameters",
    f"{ZERO}/stage3_max_reuse_distance",
    "parameters whole around their use",
    stream="gather",
)
PERSISTENT = Category(
    "persistent parameters",
    f"{ZERO}/stage3_param_persistence_threshold",
    "parameters below the threshold stay whole",
    stream="gather",
)
GATHER_COPY = Category(
    "gather buffer",
    f"{ZERO}/stage3_prefetch_bucket_size",
    "what one gather fetches, once more",
    stream="gather",
    communicated=True,
)
SECONDARY = Category(
    "secondary shards (hpZ)",
    f"{ZERO}/zero_hpz_partition_size",
    "w per element / zero_hpz_partition_size, from its first release to the step",
)
OFFLOAD_SCRATCH = Category("offload scratch", OPTIMIZER, "w x the largest parameter")
OVERFLOW_CHECK = Category(
    "overflow test", "/fp16", "the largest gradient in fp32, its masks: 4 or 11 per element"
)
SENT_OVERFLOW_CHECK = OVERFLOW_CHECK._replace(pointer=OPTIMIZER)
"""Of a gradient on its way to the host, in every dtype."""
