"""Partitioned parameters of stage 3, and weights that were not loaded."""

from dsconfig.failures.signature import Role, Signature

_GATHER = "Use with deepspeed.zero.GatheredParameters(params) around code that reads weights"
_EMPTY = (
    "The size of tensor a (0) must match",
    "The expanded size of the tensor (0) must match",
    "must be a matrix, got 1-D tensor",
    "out of bounds for dimension 0 with size 0",
    "too many indices for tensor of dimension 1",
    "Dimension out of range (expected to be in range of [-1, 0], but got 1)",
)
"""What torch prints about a partitioned weight: it has one dimension, of size 0."""

SIGNATURES = (
    Signature(
        name="missing-weights-stage3",
        phrases=("| MISSING",),
        pattern=r"(?:layers?|blocks?|h)\.(?:\{|\d).{0,200}\| MISSING",
        clues=("stage 3",),
        role=Role.SILENT,
        releases={"transformers": ">=5.0.0"},
        cause="weights of whole layers were not loaded at stage 3: they are newly initialized, "
        "and the run trains a random model",
        remedy="Stop the run. Use a transformers release that loads this model under zero.Init, or "
        "stage 2.",
        threads=(
            "huggingface/transformers/issues/45313",
            "huggingface/transformers/issues/45397",
            "huggingface/transformers/issues/28244",
        ),
    ),
    Signature(
        name="size-mismatch-partitioned",
        phrases=("copying a param with shape",),
        pattern=r"torch\.Size\(\[[01]\]\) from checkpoint|current model is torch\.Size\(\[0\]\)",
        releases={"deepspeed": ""},
        cause="stage 3: the checkpoint or the model contains partitioned (empty) parameters, so "
        "the shapes differ",
        remedy=f"{_GATHER}; to load a checkpoint use engine.load_checkpoint, or convert it with "
        "zero_to_fp32.py and load it before deepspeed.initialize.",
        remedies={
            "transformers": 'Save with "stage3_gather_16bit_weights_on_model_save": true, or '
            "convert the checkpoint with zero_to_fp32.py, and load it with from_pretrained."
        },
        threads=(
            "huggingface/transformers/issues/20082",
            "Lightning-AI/pytorch-lightning/issues/18648",
            "deepspeedai/DeepSpeed/issues/1394",
        ),
    ),
    Signature(
        name="embedding-partitioned",
        phrases=("'weight' must be 2-D",),
        releases={"deepspeed": ""},
        cause="stage 3: a module that is not managed by the engine (reference model, text encoder, "
        "unwrapped model) uses a partitioned embedding",
        remedy="Call the engine instead of the module it wraps; initialize further models with an "
        f"engine of their own. {_GATHER}.",
        threads=(
            "huggingface/trl/issues/600",
            "deepspeedai/DeepSpeed/issues/2746",
            "modelscope/ms-swift/issues/1996",
            "hiyouga/LlamaFactory/issues/4557",
        ),
    ),
    Signature(
        name="vocabulary-size-zero",
        phrases=("shape '[-1, 0]' is invalid",),
        releases={"transformers": "<4.44.0"},
        cause="resize_token_embeddings at stage 3 set vocab_size to 0: it read the shape of a "
        "partitioned embedding",
        remedy="Update transformers, or set model.config.vocab_size to the number of tokens after "
        "resizing.",
        threads=(
            "huggingface/transformers/issues/26398",
            "huggingface/transformers/pull/32192",
            "huggingface/transformers/pull/26387",
        ),
    ),
    Signature(
        name="partitioned-tensor-used",
        phrases=_EMPTY,
        clues=("stage 3",),
        releases={"deepspeed": ""},
        cause="code outside the engine's hooks used a partitioned (empty) parameter at stage 3",
        remedy=f"{_GATHER}, for example merging adapters or initializing weights; or use stage 2.",
        threads=(
            "hiyouga/LlamaFactory/issues/513",
            "hiyouga/LlamaFactory/issues/2081",
            "huggingface/transformers/issues/43596",
        ),
    ),
    Signature(
        name="empty-weight-used",
        phrases=_EMPTY,
        frame=r"torch/nn/|/transformers/m|/peft/|[eE]mbed",
        clues=("DeepSpeed",),
        releases={"deepspeed": ""},
        cause="code uses a weight of size 0, as ZeRO stage 3 leaves weights outside the forward "
        "pass of their module",
        remedy=f"At stage 3: {_GATHER[0].lower()}{_GATHER[1:]}; resize embeddings and merge "
        "adapters before deepspeed.initialize, or use stage 2.",
        threads=(
            "huggingface/transformers/issues/43638",
            "huggingface/transformers/issues/41762",
            "hiyouga/LlamaFactory/issues/9345",
        ),
    ),
    Signature(
        name="parameters-in-flight",
        phrases=("still have inflight params",),
        releases={"deepspeed": ""},
        cause="stage 3: a forward pass ended while prefetched parameters were not used, because "
        "the modules ran in another order than before",
        remedy='Set "stage3_prefetch_bucket_size": 0, run the same modules in each pass, update '
        "DeepSpeed.",
        threads=(
            "deepspeedai/DeepSpeed/issues/5648",
            "deepspeedai/DeepSpeed/issues/5828",
            "deepspeedai/DeepSpeed/issues/3156",
            "deepspeedai/DeepSpeed/issues/4808",
        ),
    ),
    Signature(
        name="parameter-status",
        phrases=(
            "'status': 'INFLIGHT'",
            "'status': 'NOT_AVAILABLE'",
            "ds_active_sub_modules, param.ds_summary",
        ),
        releases={"deepspeed": ""},
        cause="stage 3: a parameter was not available when its module ran: modules ran in another "
        "order than before (evaluation, generation), or a parameter is used outside its module",
        remedy='Set "stage3_prefetch_bucket_size": 0 and "overlap_comm": false, run evaluation '
        "through the engine, and update DeepSpeed.",
        threads=(
            "deepspeedai/DeepSpeed/issues/5381",
            "deepspeedai/DeepSpeed/issues/3068",
            "deepspeedai/DeepSpeed/issues/4194",
            "QwenLM/Qwen-VL/issues/103",
        ),
    ),
    Signature(
        name="unused-parameters-stage2",
        phrases=("This assert indicates that your module has parameters that",),
        releases={"deepspeed": ""},
        cause="stage 2 with ignore_unused_parameters false: some parameters did not contribute "
        "to the loss",
        remedy='Delete "ignore_unused_parameters" (default: true), or use all parameters.',
        threads=("deepspeedai/DeepSpeed/issues/5241",),
    ),
    Signature(
        name="tensors-on-two-devices",
        phrases=("Expected all tensors to be on the same device", "expected input to be on cuda"),
        releases={"torch": ""},
        cause="a tensor stayed on the CPU (or another GPU) while its module runs on this one",
        remedy="Move the batch to engine.device, and do not call .cpu() or .to() on parts of a "
        "model that the engine manages.",
        threads=("EleutherAI/gpt-neox/issues/478",),
    ),
)
