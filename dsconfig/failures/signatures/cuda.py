"""Errors of the GPU and its libraries."""

from dsconfig.failures.signature import Signature

_COLLECT = (
    "CUDA reports it later than it happens: run again with CUDA_LAUNCH_BLOCKING=1 (and one "
    "step), and collect that traceback, nvidia-smi -q -d ECC and dmesg | grep Xid."
)

SIGNATURES = (
    Signature(
        name="index-out-of-range-on-gpu",
        phrases=(
            "srcIndex < srcSelectDimSize",
            "index out of bounds",
            "device-side assert triggered",
        ),
        pattern="Assertion `|device-side assert",
        releases={"torch": ""},
        cause="an index is out of range on the GPU: a token id beyond the embedding, a label "
        "beyond the classes, or a position beyond the maximum length",
        remedy="Compare max(input_ids) with the rows of the embedding (resize_token_embeddings "
        "after adding tokens) and labels with the number of classes. " + _COLLECT,
        threads=(
            "haotian-liu/LLaVA/issues/445",
            "deepspeedai/Megatron-DeepSpeed/issues/207",
            "lm-sys/FastChat/issues/199",
        ),
    ),
    Signature(
        name="illegal-memory-access",
        phrases=("an illegal memory access was encountered",),
        releases={"torch": ""},
        cause="a GPU kernel accessed memory that does not belong to it: a bug of a custom "
        "kernel (flash attention, fused optimizer, quantization), or defective hardware",
        remedy=f"{_COLLECT} Disable custom kernels one by one.",
        threads=(
            "deepspeedai/DeepSpeed/issues/4945",
            "deepspeedai/DeepSpeed/issues/1852",
            "tdrussell/qlora-pipe/issues/51",
            "axolotl-ai-cloud/axolotl/issues/1473",
        ),
    ),
    Signature(
        name="cublas",
        phrases=("CUBLAS_STATUS_",),
        pattern=r"CUBLAS_STATUS_(?P<status>[A-Z_]+)",
        releases={"torch": ""},
        cause="cuBLAS failed ({status}): an index error before it, no memory left for its "
        "workspace, or a driver that does not match",
        remedy=f"{_COLLECT} Check token ids and labels, leave some GPU memory free, and update the "
        "driver.",
        threads=(
            "deepspeedai/DeepSpeed/issues/294",
            "VHellendoorn/Code-LMs/issues/31",
            "clovaai/bros/issues/14",
        ),
    ),
    Signature(
        name="gpu-hardware",
        phrases=(
            "uncorrectable ECC error",
            "GPU has fallen off the bus",
            "Unable to determine the device handle",
        ),
        cause="a GPU reported a hardware error",
        remedy="Exclude this GPU or node, and collect nvidia-smi -q -d ECC and dmesg | grep Xid "
        "for the administrator.",
        threads=("huggingface/trl/issues/4149", "hiyouga/LlamaFactory/issues/9170"),
    ),
    Signature(
        name="gpu-not-available",
        phrases=(
            "No CUDA GPUs are available",
            "invalid device ordinal",
            "no CUDA-capable device is detected",
        ),
        releases={"torch": ""},
        cause="a rank selected a GPU that does not exist or is hidden from it",
        remedy="Start as many processes as nvidia-smi lists, and check CUDA_VISIBLE_DEVICES and "
        "the container's --gpus option.",
        threads=("XLabs-AI/x-flux/issues/44",),
    ),
    Signature(
        name="gpu-architecture",
        phrases=("no kernel image is available for execution on the device",),
        releases={"torch": ""},
        cause="torch or an extension was built without support for this GPU",
        remedy="Install a torch build for this GPU, and rebuild extensions with "
        "TORCH_CUDA_ARCH_LIST.",
        threads=("deepspeedai/DeepSpeed/issues/5724", "deepspeedai/DeepSpeed/issues/6549"),
    ),
)
