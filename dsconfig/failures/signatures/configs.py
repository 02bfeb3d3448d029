"""Configs that a program refuses."""

from dsconfig.failures.signature import Signature

_REJECTED = ("validation error for DeepSpeed", "validation errors for DeepSpeed")
_VALIDATE = "`dsconfig validate FILE` finds it without a GPU."

SIGNATURES = (
    Signature(
        name="config-refused-by-dsengine",
        phrases=("this config cannot be run:",),
        items=r"(?m)^[ \t]*(?P<findings>DSC\d{3} .*+)$(?:\n {4,}(?P<helps>\S.*+)$)?",
        releases={"dsengine": ""},
        cause="dsengine refuses the config: {findings}",
        remedy=f"{{helps}}. {_VALIDATE}",
    ),
    Signature(
        name="batch-arithmetic",
        phrases=("Check batch related parameters",),
        pattern=r"Check batch related parameters(?:.{0,160}?(?P<sizes>\d+ != \d+ \* \d+ \* \d+))?",
        releases={"deepspeed": ""},
        cause="train_batch_size is not micro batch x accumulation steps x ranks ({sizes})",
        remedy=f"Set two of the three keys; DeepSpeed computes the third. {_VALIDATE}",
        remedies={
            "transformers": 'Set the three batch keys to "auto"; the Trainer fills in its own '
            f"arguments. {_VALIDATE}",
            "openrlhf": "Make --train.batch_size divisible by micro batch size x GPUs of the "
            "actor.",
        },
        threads=(
            "deepspeedai/DeepSpeed/issues/6914",
            "OpenRLHF/OpenRLHF/issues/346",
            "hiyouga/LlamaFactory/issues/2574",
        ),
    ),
    Signature(
        name="config-contradicts-trainer",
        phrases=("Please correct the following DeepSpeed config values that mismatch",),
        releases={"transformers": ""},
        items=r"(?m)^[ \t]*- (?P<listed>ds (?>\S+?=)(?>.*? vs hf ).*)$",
        cause="values of the config contradict TrainingArguments: {listed}",
        remedy='Set the listed keys to "auto", or pass the same values to TrainingArguments. '
        "`dsconfig validate FILE --training-args ARGS` finds them.",
        threads=(
            "huggingface/transformers/issues/29348",
            "shibing624/MedicalGPT/issues/191",
            "hendrycks/apps/issues/9",
            "hiyouga/LlamaFactory/issues/1116",
        ),
    ),
    Signature(
        name="unresolved-auto",
        phrases=("'auto'", '"auto"', *_REJECTED),
        pattern=r"validation errors? for|input_value='auto'|(?:could not convert string to float|"
        r"invalid literal for int\(\)[^']{0,40}|not supported between instances|"
        r"found no value for|unable to parse).{0,80}['\"]auto",
        near=(r"input_value='auto'|['\"]auto",),
        releases={"deepspeed": ""},
        cause='the config contains "auto", which only transformers and accelerate fill in',
        remedy=f'Replace "auto" by a value: dsconfig resolve FILE -o ds.json. {_VALIDATE}',
        remedies={
            "accelerate": "accelerate fills in only some keys: replace the others by a value, "
            "or set deepspeed_plugin.deepspeed_config before prepare. " + _VALIDATE
        },
        threads=("huggingface/accelerate/issues/1644", "deepspeedai/Megatron-DeepSpeed/issues/298"),
    ),
    Signature(
        name="text-instead-of-number",
        phrases=("not supported between instances of 'str' and",),
        frame=r"deepspeed[/\\]runtime[/\\](?:engine|config)\.py",
        releases={"deepspeed": ""},
        cause="DeepSpeed compares a value of the config with a number, but it is text: usually an "
        '"auto" that nothing filled in',
        remedy='Replace "auto" by a value: dsconfig resolve FILE -o ds.json. A '
        f"HfDeepSpeedConfig for zero.Init does not fill in batch sizes. {_VALIDATE}",
        threads=("deepspeedai/DeepSpeed/issues/1270", "Roblox/FAI-RL/pull/70"),
    ),
    Signature(
        name="auto-without-hidden-size",
        phrases=(
            "therefore it's not possible to automatically fill out the following `auto` entries",
        ),
        releases={"transformers": ""},
        cause='the model config has no hidden_size, so the Trainer cannot fill in "auto" of ZeRO '
        "buckets",
        remedy='Replace "auto" of reduce_bucket_size, stage3_prefetch_bucket_size and '
        "stage3_param_persistence_threshold by integers.",
        threads=("huggingface/transformers/issues/22176", "hiyouga/LlamaFactory/issues/4754"),
    ),
    Signature(
        name="fractional-bucket-size",
        phrases=("got a number with a fractional part", *_REJECTED),
        near=("got a number with a fractional part",),
        releases={"deepspeed": ">=0.15.0"},
        cause="a bucket size is not an integer: older transformers and accelerate compute "
        "stage3_prefetch_bucket_size as 0.9 x hidden size squared",
        remedy="Set stage3_prefetch_bucket_size to an integer, or update transformers and "
        "accelerate.",
        threads=(
            "deepspeedai/DeepSpeed/issues/6525",
            "hiyouga/LlamaFactory/issues/5252",
            "modelscope/ms-swift/issues/1862",
            "huggingface/accelerate/pull/2814",
        ),
    ),
    Signature(
        name="config-value-rejected",
        phrases=_REJECTED,
        pattern=r"validation errors? for (?P<block>DeepSpeed\w+)",
        releases={"deepspeed": ""},
        cause="{block} has a key or value that DeepSpeed does not accept; the next lines name it",
        remedy=f"Correct the key that the next line names. {_VALIDATE}",
        threads=(
            "snowflakedb/ArcticTraining/issues/165",
            "deepspeedai/DeepSpeedExamples/issues/287",
            "deepspeedai/DeepSpeedExamples/issues/513",
        ),
    ),
    Signature(
        name="optimizer-given-twice",
        phrases=(
            "You cannot specify an optimizer in the config file and in the code at the same time",
            "You cannot specify a scheduler in the config file and in the code at the same time",
        ),
        releases={"accelerate": ""},
        cause="the config defines an optimizer or scheduler, and the script creates one too",
        remedy="Delete the block from the config, or use accelerate.utils.DummyOptim and "
        "DummyScheduler in the script.",
        threads=("huggingface/trl/issues/636",),
    ),
    Signature(
        name="offload-with-own-optimizer",
        phrases=("You are using ZeRO-Offload with a client provided optimizer",),
        releases={"deepspeed": ""},
        cause="the optimizer is offloaded to the CPU, but the script created one that is not "
        "DeepSpeedCPUAdam",
        remedy="Define the optimizer in the config, create deepspeed.ops.adam.DeepSpeedCPUAdam, "
        "set "
        '"zero_force_ds_cpu_optimizer": false.',
        remedies={
            "transformers": 'Add an "optimizer" block with "auto" values to the config, or set '
            '"zero_force_ds_cpu_optimizer": false.'
        },
        threads=(
            "deepspeedai/DeepSpeed/issues/7524",
            "Lightning-AI/pytorch-lightning/issues/17603",
            "OptimalScale/LMFlow/issues/693",
        ),
    ),
    Signature(
        name="zero-without-optimizer",
        phrases=("requires an optimizer",),
        pattern=r"zero stage (?P<stage>\d) requires an optimizer",
        releases={"deepspeed": ""},
        cause="stage {stage} requires an optimizer, and neither config nor script defines one",
        remedy='Add an "optimizer" block, or pass optimizer= to deepspeed.initialize.',
        threads=("hiyouga/LlamaFactory/issues/1243",),
    ),
    Signature(
        name="batch-size-unknown-to-accelerate",
        phrases=(
            "requires you to pass at least one of training or evaluation dataloaders",
            "dataloaders passed to `accelerate.prepare()` has `None` as batch size",
        ),
        releases={"accelerate": ""},
        cause="accelerate takes the micro batch from a data loader, and prepare() received none "
        "with a batch size",
        remedy="Set train_micro_batch_size_per_gpu in the config to an integer, or pass the "
        "training data loader to accelerator.prepare together with the model.",
        threads=("huggingface/peft/issues/450", "kohya-ss/musubi-tuner/issues/44"),
    ),
    Signature(
        name="device-map-at-stage3",
        phrases=("DeepSpeed Zero-3 is not compatible with",),
        releases={"transformers": ""},
        cause="the script passes device_map or low_cpu_mem_usage to from_pretrained, which "
        "stage 3 does not support",
        remedy="Remove device_map and low_cpu_mem_usage from from_pretrained, or use stage 2.",
        threads=(
            "huggingface/accelerate/issues/2543",
            "huggingface/peft/issues/306",
            "OptimalScale/LMFlow/issues/620",
            "hiyouga/LlamaFactory/issues/3949",
        ),
    ),
    Signature(
        name="moe-refused-at-stage3",
        phrases=("MoE is not supported with ZeRO Stage 3", "MoE not supported with Stage 3"),
        releases={"deepspeed": ""},
        cause="DeepSpeed's own MoE layers do not support stage 3",
        remedy="Use stage 2, or the MoE layers of transformers with leaf modules.",
        threads=("deepspeedai/DeepSpeed/issues/2870",),
    ),
)
