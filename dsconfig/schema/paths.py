"""The path of a key, and the keys to which code refers by name."""

from typing import Self

from dsconfig import batch


class KeyPath(tuple[str, ...]):
    """A path, equal to the tuple of its names; ``path / "name"`` is a key below it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the path written as a JSON Pointer (RFC 6901) or dotted; "" is the root."""
        if text.startswith("/"):
            return cls(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))
        return cls(text.split(".") if text else ())

    def __truediv__(self, name: str) -> Self:
        return type(self)((*self, name))

    @property
    def name(self) -> str:
        """The name of the key in its block."""
        return self[-1]

    @property
    def parent(self) -> Self:
        """The path of the block around the key; the root's is the root."""
        return type(self)(self[:-1])

    @property
    def dotted(self) -> str:
        """The names with dots between them: ``zero_optimization.stage``."""
        return ".".join(self)

    def __str__(self) -> str:
        return self.dotted

    @property
    def pointer(self) -> str:
        """The JSON Pointer: ``/zero_optimization/stage``."""
        return "".join(f"/{escape(name)}" for name in self)


def escape(name: str) -> str:
    """Return a name as a part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


ROOT = KeyPath()

ZERO = ROOT / "zero_optimization"
STAGE = ZERO / "stage"
OVERLAP_COMM = ZERO / "overlap_comm"
SUB_GROUP_SIZE = ZERO / "sub_group_size"
REDUCE_BUCKET, GATHER_BUCKET = ZERO / "reduce_bucket_size", ZERO / "allgather_bucket_size"
PREFETCH_BUCKET = ZERO / "stage3_prefetch_bucket_size"
PERSISTENCE_THRESHOLD = ZERO / "stage3_param_persistence_threshold"
GATHERED_ON_SAVE = ZERO / "stage3_gather_16bit_weights_on_model_save"
OFFLOAD_OPTIMIZER, OFFLOAD_PARAM = ZERO / "offload_optimizer", ZERO / "offload_param"
OPTIMIZER_DEVICE, PARAM_DEVICE = OFFLOAD_OPTIMIZER / "device", OFFLOAD_PARAM / "device"
OPTIMIZER_NVME, PARAM_NVME = OFFLOAD_OPTIMIZER / "nvme_path", OFFLOAD_PARAM / "nvme_path"

FP16, BF16 = ROOT / "fp16", ROOT / "bf16"
FP16_ENABLED, BF16_ENABLED = FP16 / "enabled", BF16 / "enabled"
HALF_PRECISIONS = {"fp16": FP16_ENABLED, "bf16": BF16_ENABLED}
"""The switch of each."""
BFLOAT16 = ROOT / "bfloat16"
AUTOCAST, DATA_TYPES = ROOT / "torch_autocast", ROOT / "data_types"
GRAD_ACCUM_DTYPE = DATA_TYPES / "grad_accum_dtype"
COMMUNICATION_DTYPE = ROOT / "communication_data_type"
SEQUENCE_COMMUNICATION_DTYPE = ROOT / "seq_parallel_communication_data_type"
GRADIENT_CLIPPING = ROOT / "gradient_clipping"
STEPS_PER_PRINT = ROOT / "steps_per_print"

UNTESTED_OPTIMIZER = ROOT / "zero_allow_untested_optimizer"
OPTIMIZER, SCHEDULER = ROOT / "optimizer", ROOT / "scheduler"
OPTIMIZER_TYPE, OPTIMIZER_PARAMS = OPTIMIZER / "type", OPTIMIZER / "params"
LEARNING_RATE = OPTIMIZER_PARAMS / "lr"
SCHEDULER_TYPE, SCHEDULER_PARAMS = SCHEDULER / "type", SCHEDULER / "params"
MIN_LR, MAX_LR = SCHEDULER_PARAMS / "warmup_min_lr", SCHEDULER_PARAMS / "warmup_max_lr"
WARMUP_STEPS = SCHEDULER_PARAMS / "warmup_num_steps"
TOTAL_STEPS = SCHEDULER_PARAMS / "total_num_steps"

GLOBAL_BATCH, MICRO_BATCH, ACCUMULATION = BATCH = tuple(ROOT / name for name in batch.KEYS)

ACTIVATION_CHECKPOINTING = ROOT / "activation_checkpointing"
CHECKPOINT, AIO = ROOT / "checkpoint", ROOT / "aio"

SEQUENCE_PARALLEL = ROOT / "sequence_parallel_size"
TENSOR_PARALLEL = ROOT / "tensor_parallel"
AUTOTP_SIZE = TENSOR_PARALLEL / "autotp_size"
AUTOEP_SIZE = ROOT / "expert_parallel" / "autoep_size"
DEGREES = {
    "sequence": SEQUENCE_PARALLEL,
    "tensor": AUTOTP_SIZE,
    "expert": AUTOEP_SIZE,
}
"""The key of each parallel degree."""
