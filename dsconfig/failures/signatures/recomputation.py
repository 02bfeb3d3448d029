"""Activation checkpointing and gradient synchronization."""

from dsconfig.failures.signature import Signature

_ZERO_SHAPE = r"(?:recomputed|saved) metadata: \{'shape': torch\.Size\(\[0\]\)"
_NON_REENTRANT = "gradient_checkpointing_kwargs={'use_reentrant': True}"

SIGNATURES = (
    Signature(
        name="recomputed-frozen-parameters-stage3",
        phrases=("have different metadata than during the forward pass",),
        near=(_ZERO_SHAPE,),
        clues=("LoRA",),
        releases={"deepspeed": ""},
        cause="LoRA at stage 3: DeepSpeed partitions frozen parameters during the "
        "recomputation, so their recomputed shape is torch.Size([0])",
        remedy="Use a DeepSpeed release with #8148, reentrant checkpointing, or stage 2.",
        remedies={
            "transformers": "Set gradient_checkpointing_kwargs={'use_reentrant': True} in "
            "TrainingArguments and call model.enable_input_require_grads(), use a DeepSpeed "
            "release with #8148, or use stage 2."
        },
        threads=(
            "deepspeedai/DeepSpeed/pull/8148",
            "huggingface/trl/issues/5217",
            "deepspeedai/DeepSpeed/pull/8130",
        ),
    ),
    Signature(
        name="recomputed-parameters-stage3",
        phrases=("have different metadata than during the forward pass",),
        near=(_ZERO_SHAPE,),
        releases={"deepspeed": ""},
        cause="a parameter was partitioned (torch.Size([0])) in one of forward and recomputation: "
        "stage 3 released it while non-reentrant checkpointing recomputed the layer",
        remedy="Use reentrant checkpointing (use_reentrant=True), a newer DeepSpeed release, or "
        "stage 2.",
        remedies={"transformers": f"Set {_NON_REENTRANT} in TrainingArguments, or use stage 2."},
        threads=("Joluck/RWKV-PEFT/issues/58", "deepspeedai/DeepSpeed/pull/8148"),
    ),
    Signature(
        name="recomputed-shapes-differ",
        phrases=("have different metadata than during the forward pass",),
        releases={"torch": ""},
        cause="the recomputation of a checkpointed layer produced other tensors than its "
        "forward pass: the layer depends on state that changed (KV cache, dropout, dynamic "
        "shapes, autocast)",
        remedy="Set use_cache=False; keep shapes and autocast equal in both passes; or use "
        "reentrant checkpointing. debug=True of torch.utils.checkpoint lists the operations of "
        "both.",
        threads=(
            "pytorch/pytorch/issues/155171",
            "hiyouga/LlamaFactory/issues/6438",
            "huggingface/transformers/issues/34928",
        ),
    ),
    Signature(
        name="recomputed-tensor-count",
        phrases=(
            "A different number of tensors was saved during the original forward and recomputation",
            "trying to save more tensors during recomputation",
        ),
        releases={"torch": ""},
        cause="the recomputation of a checkpointed layer saved another number of tensors than its "
        "forward pass: the layer takes another path (frozen parts, hooks of stage 3, use_cache)",
        remedy="Set use_cache=False, do not change requires_grad between the passes, or use "
        "reentrant checkpointing.",
        remedies={"transformers": f"Set {_NON_REENTRANT} in TrainingArguments."},
        threads=(
            "Lightning-AI/pytorch-lightning/issues/19267",
            "huggingface/transformers/issues/34928",
        ),
    ),
    Signature(
        name="no-sync-with-zero",
        phrases=("no_sync context manager is incompatible with gradient",),
        releases={"deepspeed": ">=0.16.0"},
        cause="the program called engine.no_sync() at stage 2 or 3, which DeepSpeed 0.16 and newer "
        "refuse",
        remedy="Remove no_sync: engine.backward and engine.step accumulate by themselves.",
        remedies={
            "transformers": "Use transformers 4.47 or newer, or gradient_accumulation_steps: 1, or "
            "DeepSpeed 0.15.4.",
            "accelerate": "Use an accelerate release whose no_sync ignores DeepSpeed, do not call "
            "accelerator.accumulate with stage 2 or 3, or use DeepSpeed 0.15.4.",
        },
        threads=(
            "deepspeedai/DeepSpeed/issues/6793",
            "huggingface/accelerate/issues/3481",
            "huggingface/transformers/pull/35157",
            "hiyouga/LlamaFactory/issues/6194",
        ),
    ),
    Signature(
        name="gradient-reduced-twice",
        phrases=("has already been reduced",),
        releases={"deepspeed": ""},
        cause="a parameter received a gradient twice in one backward pass, at stage 1 or 2: it "
        "is used in several checkpointed segments or in several backward calls",
        remedy="Use non-reentrant checkpointing (use_reentrant=False), compute one loss and call "
        "backward once, or disable gradient checkpointing.",
        remedies={
            "transformers": "Set gradient_checkpointing_kwargs={'use_reentrant': False} in "
            "TrainingArguments, or disable gradient checkpointing."
        },
        threads=(
            "deepspeedai/DeepSpeed/issues/988",
            "modelscope/ms-swift/issues/3128",
            "OpenBMB/MiniCPM-V/issues/1003",
            "huggingface/transformers/issues/18330",
        ),
    ),
    Signature(
        name="loss-without-gradient",
        phrases=("does not require grad and does not have a grad_fn",),
        releases={"torch": ""},
        cause="no input of the loss requires a gradient: with frozen embeddings, reentrant "
        "checkpointing detaches the adapters",
        remedy="Call model.enable_input_require_grads() after adding the adapters, or use "
        "non-reentrant checkpointing (use_reentrant=False).",
        remedies={
            "transformers": "Call model.enable_input_require_grads() after get_peft_model, or set "
            "gradient_checkpointing_kwargs={'use_reentrant': False} in TrainingArguments."
        },
        threads=(
            "deepspeedai/DeepSpeedExamples/issues/625",
            "huggingface/transformers/issues/26377",
            "LlamaChinese/Llama-Chinese/issues/242",
        ),
    ),
)
