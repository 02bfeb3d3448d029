"""Top level of a ds_config: keys and blocks, which load when a config contains them."""

from typing import Annotated, Literal

from pydantic import ConfigDict

from dsconfig.schema.declare import Block, key
from dsconfig.schema.lazy import lazy_blocks
from dsconfig.schema.markers import AnyCase
from dsconfig.schema.types import Integer, Number, OrAbsent, OrAuto, OrBool, Positive
from dsconfig.schema.value_checks import (
    A_BLOCK,
    A_BLOCK_OR_EMPTY,
    A_BLOCK_OR_NULL,
    A_BLOCK_WITH_SWITCH,
    A_NUMBER,
    COUNT,
    DIVISIBLE,
    FORMATS,
    NONZERO_STEPS,
    OLD_FORMATS,
    SWITCH,
    TIMERS,
    one_of,
)

with lazy_blocks():
    from dsconfig.schema.blocks.autotuning import Autotuning
    from dsconfig.schema.blocks.bf16 import BF16, BFloat16
    from dsconfig.schema.blocks.checkpoint import ActivationCheckpointing, Checkpoint, DataStates
    from dsconfig.schema.blocks.compile import Compile
    from dsconfig.schema.blocks.compression_training import CompressionTraining
    from dsconfig.schema.blocks.data_efficiency import DataEfficiency
    from dsconfig.schema.blocks.expert_parallel import ExpertParallel
    from dsconfig.schema.blocks.formats import DataTypes, TorchAutocast
    from dsconfig.schema.blocks.fp16 import FP16
    from dsconfig.schema.blocks.optimizer import Optimizer
    from dsconfig.schema.blocks.other_engines import (
        HybridEngine,
        Inference,
        MsAmp,
        Pipeline,
        WeightQuantization,
    )
    from dsconfig.schema.blocks.reports import (
        Comet,
        CommsLogger,
        CsvMonitor,
        FlopsProfiler,
        TensorBoard,
        Timers,
        Wandb,
    )
    from dsconfig.schema.blocks.retired import (
        Amp,
        CurriculumLearning,
        Eigenvalue,
        Elasticity,
        Nebula,
        ProgressiveLayerDrop,
        QuantizeTraining,
        SparseAttention,
    )
    from dsconfig.schema.blocks.scheduler import Scheduler
    from dsconfig.schema.blocks.tensor_parallel import TensorParallel
    from dsconfig.schema.blocks.zero import ZeroOptimization
    from dsconfig.schema.blocks.zero_offload import Aio

GradientFormat = Annotated[Literal["fp16", "bf16", "fp32"], AnyCase()]


class DSConfig(Block):
    """ds_config."""

    model_config = ConfigDict(title="ds_config")

    # Batch: global batch = micro batch x accumulation x data-parallel ranks.
    train_batch_size: OrAbsent[OrAuto[Positive]] = key(
        None,
        "Global batch: samples per optimizer step over all data-parallel ranks.",
        unit="samples",
        see=("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        checks=(COUNT,),
    )
    train_micro_batch_size_per_gpu: OrAbsent[OrAuto[Positive]] = key(
        None,
        "Micro batch: samples per GPU in one forward and backward.",
        unit="samples",
        memory="activations grow in proportion",
        see=("train_batch_size", "gradient_accumulation_steps"),
        checks=(COUNT,),
    )
    gradient_accumulation_steps: OrAbsent[OrAuto[Positive]] = key(
        None,
        "Micro batches accumulated per optimizer step; 1 if it cannot be derived.",
        unit="steps",
        see=("train_batch_size", "train_micro_batch_size_per_gpu"),
        checks=(COUNT,),
    )
    managed_gradient_accumulation: bool = key(
        True,
        "Count micro batches in the engine; false: the script decides when to step.",
        since="0.19.4",
    )
    dataloader_drop_last: bool = key(
        False,
        "Drop the incomplete last batch of the data loader that the engine creates.",
        since="0.5.2",
    )

    # Gradients.
    gradient_clipping: OrAuto[Number] = key(
        1.0,
        "Maximum global L2 norm of gradients; 0: no clipping.",
        was={"0.19.3": 0.0},
        checks=(A_NUMBER,),
    )
    prescale_gradients: bool = key(
        False,
        "Scale gradients before the all-reduce instead of after it.",
        see=("gradient_predivide_factor",),
    )
    gradient_predivide_factor: Number = key(
        1.0,
        "Divisor applied to gradients before the all-reduce, as part of averaging.",
        see=("prescale_gradients",),
    )
    gradient_allreduce_op: Annotated[Literal["mean", "sum"], AnyCase()] = key(
        "mean",
        "Average or sum gradients; sum does not support stage 3, ZenFlow and DeepCompile.",
        since="0.19.6",
        checked="0.19.6",
        checks=(one_of("mean", "sum"),),
    )
    communication_data_type: OrAuto[GradientFormat] | None = key(
        None,
        "Dtype of gradient communication; null: the training precision.",
        since="0.5.8",
        checked="0.5.8",
        checks=(OLD_FORMATS, FORMATS),
    )
    seq_parallel_communication_data_type: OrAuto[GradientFormat] | None = key(
        "fp32",
        "Dtype of gradient communication within a sequence-parallel group.",
        since="0.16.5",
        checked="0.16.5",
        checks=(FORMATS,),
    )
    disable_allgather: bool = key(False, "Stored by DeepSpeed but never read.")
    sparse_gradients: bool = key(
        False,
        "Communicate sparse embedding gradients as indices and values.",
        refused="0.19.8",
        instead="delete it; embeddings with sparse=True do not need it",
        in_engine=True,
    )

    # Precision.
    fp16: OrAbsent[FP16] = key(
        None, "fp16 training with loss scaling.", see=("bf16",), checks=(A_BLOCK.until("0.17.0"),)
    )
    bf16: OrAbsent[BF16] = key(
        None,
        "bfloat16 training.",
        since="0.6.0",
        takes_null=True,
        see=("fp16",),
        checks=(A_BLOCK.until("0.17.0"),),
    )
    bfloat16: OrAbsent[BFloat16] = key(
        None,
        "Old name of bf16; read only if bf16 is absent.",
        since="0.5.5",
        replaced_by="bf16",
        deprecated="0.6.0",
        instead='write "bf16"',
    )
    torch_autocast: OrAbsent[TorchAutocast] = key(
        None,
        "Train with torch.autocast; ZeRO keeps fp32 weights.",
        since="0.17.2",
        checks=(A_BLOCK,),
    )
    data_types: OrAbsent[DataTypes] = key(
        None,
        "Dtypes of gradient accumulation, parameters and buffers.",
        since="0.7.6",
        checks=(A_BLOCK,),
    )
    amp: OrAbsent[Amp] = key(
        None,
        "Apex mixed precision.",
        replaced_by="torch_autocast",
        refused="0.19.8",
        checks=(A_BLOCK_WITH_SWITCH,),
        instead='write "bf16" or "torch_autocast" instead',
    )
    msamp: OrAbsent[MsAmp] = key(
        None, "MS-AMP fp8; written and read only by accelerate.", status="external"
    )

    # ZeRO.
    zero_optimization: OrAbsent[OrBool[ZeroOptimization]] = key(
        None, "ZeRO sharding and offload; true is the old form of stage 1."
    )
    zero_allow_untested_optimizer: bool = key(
        False, "Allow ZeRO with an optimizer that DeepSpeed has not tested."
    )
    zero_force_ds_cpu_optimizer: bool = key(
        True,
        "Require a DeepSpeed CPU optimizer if a client optimizer is used with optimizer offload.",
        since="0.8.3",
    )
    allgather_size: Integer = key(
        500_000_000,
        "Old bucket size; read only if zero_optimization is a boolean.",
        unit="elements",
        replaced_by="zero_optimization.allgather_bucket_size",
    )
    aio: Aio | None = key(
        None, "Asynchronous I/O for NVMe offload.", since="0.3.15", checks=(A_BLOCK_OR_NULL,)
    )

    # Optimizer, scheduler, recomputation.
    optimizer: OrAbsent[Optimizer] = key(
        None,
        "Optimizer that the engine creates if the script does not pass one.",
        checks=(A_BLOCK,),
    )
    scheduler: OrAbsent[Scheduler] = key(
        None,
        "Learning-rate scheduler that the engine creates if the script does not pass one.",
        checks=(A_BLOCK,),
    )
    activation_checkpointing: OrAbsent[ActivationCheckpointing] = key(
        None,
        "Defaults of deepspeed.checkpointing; no key here enables activation checkpointing.",
        checks=(A_BLOCK,),
    )
    progressive_layer_drop: OrAbsent[ProgressiveLayerDrop] = key(
        None,
        "Progressive layer dropping.",
        since="0.3.1",
        refused="0.19.8",
        checks=(A_BLOCK_WITH_SWITCH,),
        instead="delete it",
    )

    # Parallelism.
    sequence_parallel_size: OrAbsent[Integer] = key(
        None,
        "Sequence-parallel degree (Ulysses); must divide the data-parallel degree.",
        since="0.15.0",
    )
    data_parallel_size: OrAbsent[Integer] = key(
        None,
        "Data-parallel degree; forms the device mesh with sequence_parallel_size.",
        since="0.15.0",
    )
    use_data_before_expert_parallelism: bool = key(
        False, "Place the data axis before the expert axis in the process topology.", since="0.12.4"
    )
    tensor_parallel: OrAbsent[TensorParallel] = key(
        None, "AutoTP: tensor parallelism for training.", since="0.16.4"
    )
    expert_parallel: OrAbsent[ExpertParallel] = key(
        None,
        "AutoEP: expert parallelism for mixture-of-experts models.",
        since="0.19.2",
        checks=(A_BLOCK_OR_EMPTY,),
    )
    pipeline: OrAbsent[Pipeline] = key(None, "Options of the pipeline engine.", checks=(A_BLOCK,))
    elasticity: OrAbsent[Elasticity] = key(
        None,
        "Elastic training: a global batch that many world sizes divide.",
        since="0.3.9",
        replaced_by="train_batch_size",
        refused="0.19.8",
        checks=(A_BLOCK,),
        instead="delete it and set the batch sizes",
        in_engine=True,
    )

    # Compilation and kernels.
    compile: OrAbsent[Compile] = key(
        None,
        "DeepCompile; applied when the script calls engine.compile().",
        since="0.13.2",
        gap=("0.14.4", "0.16.5"),
    )
    graph_harvesting: bool = key(
        False,
        "Capture short kernel sequences as CUDA graphs.",
        since="0.12.6",
        refused="0.19.8",
        instead="delete it",
    )
    sparse_attention: OrAbsent[SparseAttention] = key(
        None,
        "Block-sparse attention kernels.",
        refused="0.19.7",
        checks=(A_BLOCK,),
        instead="delete it; use a model with flash attention",
    )
    hybrid_engine: OrAbsent[HybridEngine] = key(
        None, "Hybrid engine for RLHF: switches between training and generation.", since="0.9.0"
    )
    vocabulary_size: Integer | None = key(
        None, "Used only for a warning if it is not a multiple of 8.", checks=(DIVISIBLE,)
    )

    # Data.
    data_efficiency: OrAbsent[DataEfficiency] = key(
        None,
        "Curriculum learning, dynamic batching and random token dropping.",
        since="0.8.0",
        checks=(A_BLOCK,),
    )
    curriculum_learning: OrAbsent[CurriculumLearning] = key(
        None,
        "Curriculum learning in its first form.",
        since="0.5.0",
        replaced_by="data_efficiency.data_sampling.curriculum_learning",
        refused="0.19.8",
        checks=(A_BLOCK_WITH_SWITCH,),
        instead="move it to data_efficiency.data_sampling.curriculum_learning",
    )

    # Quantization and compression.
    weight_quantization: OrAbsent[WeightQuantization] = key(
        None, "Weight quantization for ZeRO-Inference.", since="0.10.3"
    )
    compression_training: OrAbsent[CompressionTraining] = key(
        None,
        "Pruning, quantization and layer reduction.",
        since="0.7.0",
        refused="0.19.7",
        checks=(A_BLOCK,),
        instead="delete it; compress with another library",
    )
    quantize_training: OrAbsent[QuantizeTraining] = key(
        None,
        "MoQ: mixture of quantization.",
        since="0.4.0",
        refused="0.19.7",
        gap=("0.7.0", "0.19.2"),
        instead="delete it; quantize with another library",
    )
    eigenvalue: OrAbsent[Eigenvalue] = key(
        None,
        "Not read at the top level by any release; it belonged in quantize_training.",
        status="removed",
        refused="0.19.8",
        instead="delete it; it was never read at the top level",
    )

    # Checkpoints.
    checkpoint: OrAbsent[Checkpoint] = key(
        None, "Checkpoint settings.", since="0.3.11", checks=(A_BLOCK,)
    )
    datastates_ckpt: OrAbsent[OrBool[DataStates]] = key(
        None,
        "Asynchronous DataStates checkpoints; any value except false enables them.",
        since="0.18.1",
    )
    nebula: OrAbsent[Nebula] = key(
        None,
        "Azure's checkpoint service.",
        since="0.7.0",
        refused="0.19.7",
        checks=(A_BLOCK,),
        instead='delete it; see "checkpoint" for parallel writers',
    )

    # Reports and logs.
    steps_per_print: Integer | None = key(
        None,
        "Optimizer steps between progress reports; null: none.",
        unit="steps",
        was={"0.15.2": 10},
        checks=(NONZERO_STEPS,),
    )
    wall_clock_breakdown: bool = key(
        False,
        "Time forward, backward and step; always on with the FLOPs profiler.",
        checks=(SWITCH,),
    )
    memory_breakdown: bool = key(False, "Log memory usage during engine initialization.")
    dump_state: bool = key(False, "Print the engine state after initialization.")
    log_level: (
        Annotated[Literal["debug", "info", "warning", "error", "critical"], AnyCase()] | None
    ) = key(
        None,
        "Log level of DeepSpeed's logger.",
        since="0.19.3",
        checks=(one_of("debug", "info", "warning", "error", "critical", null=True, late=True),),
    )
    disable_python_gc: bool = key(
        False,
        "Disable Python's garbage collector during training.",
        since="0.19.8",
    )
    flops_profiler: OrAbsent[FlopsProfiler] = key(
        None,
        "FLOPs profiler of one step.",
        since="0.3.11",
        checks=(A_BLOCK,),
    )
    comms_logger: OrAbsent[CommsLogger] = key(
        None, "Communication logger: size and time of collectives.", since="0.7.0"
    )
    timers: OrAbsent[Timers] = key(None, "Timers.", since="0.14.3", checks=(TIMERS,))
    tensorboard: OrAbsent[TensorBoard] = key(
        None, "TensorBoard monitor.", checks=(A_BLOCK.until("0.6.5"),)
    )
    wandb: OrAbsent[Wandb] = key(None, "Weights & Biases monitor.", since="0.6.6")
    comet: OrAbsent[Comet] = key(None, "Comet monitor.", since="0.14.3")
    csv_monitor: OrAbsent[CsvMonitor] = key(None, "CSV monitor.", since="0.6.6")

    # Other programs.
    autotuning: OrAbsent[Autotuning] = key(
        None,
        "Autotuning: a search for the fastest settings, run by DeepSpeed's launcher.",
        since="0.5.7",
        checks=(A_BLOCK,),
    )
    inference: OrAbsent[Inference] = key(
        None, "Read only by transformers, for the tensor-parallel degree.", status="external"
    )

    # Renamed long ago; silently ignored since.
    fp32_allreduce: bool = key(
        False,
        "Communicated gradients in fp32.",
        replaced_by="communication_data_type",
        renamed="0.5.8",
        instead='write "communication_data_type": "fp32"',
    )
    seq_parallel_comm_data_type: str = key(
        "fp32",
        "Old name of seq_parallel_communication_data_type.",
        since="0.11.2",
        replaced_by="seq_parallel_communication_data_type",
        renamed="0.16.5",
    )
