"""Number formats, loss scales, NaN."""

from dsconfig.failures.signature import Role, Signature

_NAN = (
    r"'(?:grad_norm|loss)': '?(?:nan|inf)|\"(?:grad_norm|loss)\": (?:NaN|nan|Infinity)|"
    r"\b(?:grad_norm|loss)[=:] ?nan"
)
_PHRASES = (
    "'loss': nan",
    "'grad_norm': nan",
    "'loss': 'nan'",
    "'grad_norm': 'nan'",
    "loss=nan",
    "loss: nan",
    "grad_norm: nan",
    "grad_norm=nan",
    '"loss": NaN',
    '"grad_norm": NaN',
)

SIGNATURES = (
    Signature(
        name="loss-scale-at-minimum",
        phrases=("Current loss scale already at minimum",),
        releases={"deepspeed": ""},
        cause="fp16 gradients overflow at every step until the loss scale reaches its minimum: the "
        "model was trained in bf16, the learning rate is too high, or a batch has no valid labels",
        remedy="Use bf16 instead of fp16 if the GPU supports it; otherwise reduce the learning "
        "rate and check the labels.",
        remedies={
            "transformers": "Pass bf16=True instead of fp16=True to TrainingArguments (and bf16 "
            '"auto" in the config); otherwise reduce the learning rate and check the labels.'
        },
        threads=(
            "ymcui/Chinese-LLaMA-Alpaca/issues/534",
            "modelscope/ms-swift/issues/4374",
            "yangjianxin1/Firefly/issues/68",
            "dwzhu-pku/PoSE/issues/16",
        ),
    ),
    Signature(
        name="nan-at-stage2",
        phrases=_PHRASES,
        pattern=_NAN,
        clues=("stage 2",),
        role=Role.SILENT,
        releases={"deepspeed": ">=0.12.4"},
        cause="NaN gradients or loss at stage 2: with overlap_comm, several DeepSpeed releases "
        "reduce a bucket before its gradients are complete",
        remedy='Set "overlap_comm": false, or increase reduce_bucket_size to 2e8 or more; if it '
        "persists, reduce the learning rate and check the data.",
        threads=(
            "deepspeedai/DeepSpeed/issues/5347",
            "deepspeedai/DeepSpeed/issues/5242",
            "deepspeedai/DeepSpeed/issues/4298",
            "hiyouga/LlamaFactory/issues/4850",
        ),
    ),
    Signature(
        name="nan-loss",
        phrases=_PHRASES,
        pattern=_NAN,
        role=Role.SILENT,
        cause="loss or gradients became NaN: training continues, but the weights are lost",
        remedy="Restart from the last checkpoint before this line. Use bf16 instead of fp16, "
        "reduce the learning rate, clip gradients, and check for batches without labels.",
        threads=("hiyouga/LlamaFactory/issues/8137", "haotian-liu/LLaVA/issues/1231"),
    ),
    Signature(
        name="bf16-unsupported",
        phrases=("Your setup doesn't support bf16", "Type bf16 is not supported on your device"),
        releases={"transformers": ""},
        cause="the GPU (older than Ampere) or its driver does not support bf16, or no GPU was "
        "found",
        remedy='Use fp16 instead: "fp16": {"enabled": true}, "bf16": {"enabled": false}.',
        remedies={
            "transformers": "Pass fp16=True instead of bf16=True to TrainingArguments, set both to "
            '"auto" in the config. On a newer GPU, check nvidia-smi and the CUDA build of torch.'
        },
        threads=(
            "tatsu-lab/stanford_alpaca/issues/133",
            "databrickslabs/dolly/issues/11",
            "lm-sys/FastChat/issues/399",
            "zai-org/GLM-Edge/issues/20",
        ),
    ),
    Signature(
        name="fp16-unsupported",
        phrases=("Type fp16 is not supported",),
        releases={"deepspeed": ""},
        cause="the device does not support fp16 (a CPU, for example)",
        remedy="Use bf16 or fp32 instead.",
        threads=("deepspeedai/DeepSpeed/issues/5718", "hiyouga/LlamaFactory/issues/2612"),
    ),
    Signature(
        name="mixed-dtypes",
        phrases=(
            "to have the same dtype",
            "must have the same dtype",
            "should be the same",
            "same data type",
        ),
        pattern=r"mat1 and mat2 (?:to|must) have the same dtype|"
        r"expected .{0,30}to have the same dtype|Input type .{0,60}should be the same|"
        r"must have the same dtype|tensors? .{0,30}same data type",
        releases={"torch": ""},
        cause="two operands have different dtypes: part of the model (adapters, norms, a loaded "
        "head) has another dtype than the engine's",
        remedy="Cast the model to one dtype before deepspeed.initialize "
        "(model.to(torch.bfloat16)), or enable torch_autocast.",
        remedies={
            "transformers": "Load the model in the dtype that is trained (dtype=torch.bfloat16 "
            "with bf16=True), and cast added modules to it."
        },
        threads=(
            "hiyouga/LlamaFactory/issues/3991",
            "deepspeedai/DeepSpeed/issues/4885",
            "axolotl-ai-cloud/axolotl/issues/844",
            "THUDM/CogKit/issues/32",
        ),
    ),
    Signature(
        name="flash-attention-dtype",
        phrases=("FlashAttention only support", "Flash Attention only support"),
        pattern=r"only supports? fp16 and bf16",
        cause="flash attention received fp32 tensors: the model was loaded in fp32, or a norm "
        "upcasts",
        remedy="Load the model in bf16 or fp16 and train in the same precision.",
        remedies={
            "transformers": "Pass dtype=torch.bfloat16 to from_pretrained and bf16=True to "
            "TrainingArguments."
        },
        threads=(
            "QwenLM/Qwen3/issues/406",
            "unslothai/unsloth/issues/827",
            "SWivid/F5-TTS/issues/1201",
        ),
    ),
    Signature(
        name="flash-attention-gpu",
        phrases=("FlashAttention only supports Ampere GPUs or newer",),
        cause="flash attention 2 requires an Ampere GPU or newer",
        remedy='Load the model with attn_implementation="sdpa".',
        threads=(
            "hiyouga/LlamaFactory/issues/3508",
            "dhcode-cpp/X-R1/issues/45",
            "ShinoharaHare/LLM-Training/issues/3",
        ),
    ),
)
