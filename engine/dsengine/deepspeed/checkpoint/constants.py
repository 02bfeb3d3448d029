"""Keys and file names of DeepSpeed's checkpoints, which scripts that read their files import."""

OPTIMIZER_STATE_DICT = "optimizer_state_dict"
FP32_GROUPS = "fp32_groups"
FP32_FLAT_GROUPS = "fp32_flat_groups"
BASE_OPTIMIZER_STATE = "base_optimizer_state"
BASE_OPTIMIZER_STATE_STEP = "base_optimizer_state_step"
SINGLE_PARTITION_OF_FP32_GROUPS = "single_partition_of_fp32_groups"
PARAM_GROUPS = "param_groups"
GROUP_PADDINGS = "group_paddings"
PARAM_ALIGNMENT_PADDINGS = "param_alignment_paddings"
PARTITION_COUNT = "partition_count"
ZERO_STAGE = "zero_stage"
CLIP_GRAD = "clip_grad"
FP32_WEIGHT_KEY = "fp32"
LOSS_SCALER = "loss_scaler"
PARAM = "param"
PARAM_SHAPES = "param_shapes"
BUFFER_NAMES = "buffer_names"
FROZEN_PARAM_SHAPES = "frozen_param_shapes"
FROZEN_PARAM_FRAGMENTS = "frozen_param_fragments"
MODEL_FILE_PREFIX = "mp_rank_"
ZERO_FILE_PREFIX = "zero_pp_rank_"
OPTIM_FILE_SUFFIX = "_optim_states.pt"
MODEL_FILE_SUFFIX = "_model_states.pt"
LAYER_FILE_PREFIX = "layer_"
BF16_ZERO_FILE_PREFIX = "bf16_zero_pp_rank_"
FP16_ZERO_FILE_PREFIX = "fp16_zero_pp_rank_"
CHECKPOINT_PARALLEL_DIMS = "checkpoint_parallel_dimensions"
CHECKPOINT_PP_DEGREE = "pp_degree"
CHECKPOINT_TP_DEGREE = "tp_degree"
DS_VERSION = "ds_version"
UNIVERSAL_CHECKPOINT_INFO = "universal_checkpoint_info"
PARAM_SLICE_MAPPINGS = "param_slice_mappings"
AUTOEP_LAYERS_KEY = "ds_autoep_layers"
AUTOEP_LAYERS_KEY_LEGACY = "autoep_layers"
AUTOEP_ZERO3_EXPERT_STATE_FORMAT_KEY = "checkpoint_format"
AUTOEP_ZERO3_PARTITIONED_EXPERT_STATE_FORMAT = "zero3_partitioned"

__all__ = [
    "AUTOEP_LAYERS_KEY",
    "AUTOEP_LAYERS_KEY_LEGACY",
    "AUTOEP_ZERO3_EXPERT_STATE_FORMAT_KEY",
    "AUTOEP_ZERO3_PARTITIONED_EXPERT_STATE_FORMAT",
    "BASE_OPTIMIZER_STATE",
    "BASE_OPTIMIZER_STATE_STEP",
    "BF16_ZERO_FILE_PREFIX",
    "BUFFER_NAMES",
    "CHECKPOINT_PARALLEL_DIMS",
    "CHECKPOINT_PP_DEGREE",
    "CHECKPOINT_TP_DEGREE",
    "CLIP_GRAD",
    "DS_VERSION",
    "FP16_ZERO_FILE_PREFIX",
    "FP32_FLAT_GROUPS",
    "FP32_GROUPS",
    "FP32_WEIGHT_KEY",
    "FROZEN_PARAM_FRAGMENTS",
    "FROZEN_PARAM_SHAPES",
    "GROUP_PADDINGS",
    "LAYER_FILE_PREFIX",
    "LOSS_SCALER",
    "MODEL_FILE_PREFIX",
    "MODEL_FILE_SUFFIX",
    "OPTIMIZER_STATE_DICT",
    "OPTIM_FILE_SUFFIX",
    "PARAM",
    "PARAM_ALIGNMENT_PADDINGS",
    "PARAM_GROUPS",
    "PARAM_SHAPES",
    "PARAM_SLICE_MAPPINGS",
    "PARTITION_COUNT",
    "SINGLE_PARTITION_OF_FP32_GROUPS",
    "UNIVERSAL_CHECKPOINT_INFO",
    "ZERO_FILE_PREFIX",
    "ZERO_STAGE",
]
