"""GPU and host memory."""

from dsconfig.failures.signature import Role, Signature

_OOM = ("CUDA out of memory", "HIP out of memory", "OutOfMemoryError")
_SIZES = r"(?:CUDA|HIP) out of memory(?:\. Tried to allocate (?P<tried>[\d.]+ \w+))?"
_ESTIMATE = "Find a config that fits: `dsconfig estimate FILE ... --log LOG`."
_THREADS = ("qingze-bai/VSmTrans/issues/3", "Instruction-Tuning-with-GPT-4/GPT-4-LLM/issues/16")


def _oom(phase: str, cause: str, remedy: str, *threads: str, at_stage3: str = "") -> Signature:
    """Return the signature of an out-of-memory error in a phase; ``at_stage3`` if no stage is
    higher."""
    return Signature(
        name=f"gpu-out-of-memory-{phase}",
        phrases=_OOM,
        pattern=_SIZES,
        phase=phase,
        releases={"torch": ""},
        cause=f"out of GPU memory in {phase} ({{tried}} requested): {cause}",
        remedy=f"{remedy} {_ESTIMATE}",
        at_stage={3: f"{at_stage3} {_ESTIMATE}"} if at_stage3 else {},
        threads=(*threads, *_THREADS),
    )


SIGNATURES = (
    Signature(
        name="expandable-segments",
        phrases=("handles_.at(i)", "expandable_segment_ INTERNAL", "use_count > 0 INTERNAL"),
        releases={"torch": ""},
        cause="a bug of PyTorch's allocator with expandable segments",
        remedy="Unset PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF), or set "
        "expandable_segments:False.",
        threads=(
            "pytorch/pytorch/issues/119452",
            "pytorch/pytorch/issues/188008",
            "unslothai/unsloth/issues/1819",
            "vllm-project/vllm/issues/28426",
        ),
    ),
    Signature(
        name="expandable-segments-unsupported",
        phrases=(
            "not compatible with expandable_segments",
            "not compatible with expandable segments",
        ),
        releases={"torch": ""},
        cause="the memory pool of vLLM (`enable_sleep_mode`) does not support expandable segments",
        remedy="Unset PYTORCH_CUDA_ALLOC_CONF in the job that runs vLLM, or set "
        "`enable_sleep_mode=False`.",
        threads=("vllm-project/vllm/pull/14189",),
    ),
    Signature(
        name="expandable-segments-not-shared",
        phrases=("pidfd_getfd: Operation not permitted", "pidfd_open: Operation not permitted"),
        releases={"torch": ""},
        cause="processes of a container may not share CUDA memory from expandable segments",
        remedy="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or start the container with "
        "--cap-add=SYS_PTRACE.",
        threads=("verl-project/verl/issues/2846", "alibaba/ROLL/issues/417"),
    ),
    _oom(
        "init",
        "the model states do not fit",
        "Shard or offload them: stage 3, offload_optimizer, or load the model under zero.Init.",
        "deepspeedai/DeepSpeed/issues/4700",
        at_stage3="Offload the optimizer and the parameters, or load the model under zero.Init.",
    ),
    _oom(
        "forward",
        "states and activations do not fit",
        "Enable gradient checkpointing, or reduce the micro batch or the sequence length.",
    ),
    _oom(
        "backward",
        "gradients, activations and buckets do not fit",
        "Enable gradient checkpointing, reduce the micro batch, or reduce reduce_bucket_size.",
    ),
    _oom(
        "step",
        "optimizer states do not fit",
        "Offload the optimizer to the CPU or use a higher stage.",
        at_stage3="Offload the optimizer to the CPU, or use more GPUs.",
    ),
    Signature(
        name="gpu-out-of-memory",
        phrases=_OOM,
        pattern=_SIZES,
        releases={"torch": ""},
        cause="out of GPU memory ({tried} requested)",
        remedy=f"Enable gradient checkpointing, reduce the micro batch, or shard more. {_ESTIMATE}",
        threads=_THREADS,
    ),
    Signature(
        name="dataloader-shared-memory",
        phrases=("Bus error", "bus error", "shared memory"),
        pattern="killed by signal: Bus error|bus error encountered in worker|"
        "unable to (?:open|mmap|write to) .{0,40}shared memory|out of shared memory",
        releases={"torch": ""},
        cause="/dev/shm is full: data loader workers pass batches through shared memory",
        remedy="Start the container with --shm-size 16g or --ipc=host, or use fewer workers.",
        remedies={
            "transformers": "Start the container with --shm-size 16g or --ipc=host, or reduce "
            "dataloader_num_workers in TrainingArguments."
        },
        threads=(
            "pytorch/pytorch/issues/108861",
            "pytorch/pytorch/issues/5040",
            "facebookresearch/mmf/issues/441",
        ),
    ),
    Signature(
        name="dataloader-worker-killed",
        phrases=("killed by signal", "exited unexpectedly"),
        pattern=r"DataLoader worker \(pid\(?s?\)?.{0,60}(?:killed by signal|exited unexpectedly)",
        releases={"torch": ""},
        cause="a data loader worker was killed, usually by the kernel for lack of host memory",
        remedy="Reduce the number of workers and what each holds in memory; check dmesg for "
        "'Out of memory: Killed process'.",
        remedies={
            "transformers": "Reduce dataloader_num_workers in TrainingArguments and what each "
            "worker holds in memory; check dmesg for 'Out of memory: Killed process'."
        },
        threads=(
            "pytorch/pytorch/issues/8976",
            "Visual-AI/3DRS/issues/7",
            "thangvubk/SoftGroup/issues/18",
        ),
    ),
    Signature(
        name="host-out-of-memory-loading",
        phrases=("return code = -9", "exitcode: -9", "exitcode  : -9", " Killed  "),
        pattern=r"(?:local_rank: (?P<rank>\d+) \(pid)|-9|line \d+: +\d+ Killed ",
        clues=("loading",),
        role=Role.KILLED,
        cause="a rank was killed (SIGKILL) while the model was loaded: usually by the kernel, "
        "because each rank loads the full model into host memory",
        remedy="Load the model under deepspeed.zero.Init at stage 3, or with fewer ranks per node; "
        "check dmesg for 'Out of memory: Killed process'.",
        remedies={
            "transformers": "At stage 3, create TrainingArguments before from_pretrained, so "
            "that the weights are sharded while they are loaded; check dmesg for 'Out of "
            "memory: Killed process'. `dsconfig estimate --host-memory` computes the "
            "requirement.",
            "accelerate": "Set zero3_init_flag: true in the accelerate config; check dmesg for "
            "'Out of memory: Killed process'.",
        },
        threads=(
            "liucongg/ChatGLM-Finetuning/issues/102",
            "deepspeedai/DeepSpeed/issues/1956",
            "hiyouga/LlamaFactory/issues/163",
        ),
    ),
    Signature(
        name="host-out-of-memory-killed",
        phrases=(
            "oom_kill event",
            "oom-kill event",
            "OOMKilled",
            "Out of memory: Killed process",
            "killed due to memory pressure (OOM)",
        ),
        pattern=r"^(?!.*\b0 Workers \(tasks / actors\) killed)",
        role=Role.KILLED,
        cause="the kernel, or Ray, killed a process because the host memory, or that of the job or "
        "container, was exhausted",
        remedy="Request more host memory (Slurm: --mem, Kubernetes: resources.limits.memory), "
        "offload less, or load with fewer ranks per node: `dsconfig estimate --host-memory` "
        "computes the requirement.",
        threads=(
            "nextflow-io/nextflow/issues/5932",
            "ArjunaCluster/ArjunaUsers/issues/52",
            "hiyouga/EasyR1/issues/185",
        ),
    ),
    Signature(
        name="killed",
        phrases=("return code = -9", "exitcode: -9", "exitcode  : -9", " Killed  "),
        pattern=r"(?:local_rank: (?P<rank>\d+) \(pid)|-9|line \d+: +\d+ Killed ",
        role=Role.KILLED,
        cause="a rank was killed (SIGKILL), usually by the kernel for lack of host memory, or "
        "by the scheduler of the cluster",
        remedy="Check dmesg for 'Out of memory: Killed process' and the limits of the job. Offload "
        "less, use fewer workers, or request more host memory: `dsconfig estimate --host-memory` "
        "computes the requirement.",
        threads=(
            "deepspeedai/DeepSpeed/issues/3232",
            "OpenBMB/MiniCPM-V/issues/770",
            "OpenRLHF/OpenRLHF/issues/841",
        ),
    ),
    Signature(
        name="process-bus-error",
        phrases=("return code = -7", "exitcode: -7", "exitcode  : -7", "Signal 7 (SIGBUS)"),
        pattern=r"(?:local_rank: (?P<rank>\d+) \(pid)|-7|SIGBUS",
        role=Role.KILLED,
        cause="a rank ended with a bus error: /dev/shm is full, or a memory-mapped file was "
        "truncated",
        remedy="Start the container with --shm-size 16g or --ipc=host; check free space of "
        "/dev/shm and of the disk with the model files.",
        threads=("deepspeedai/DeepSpeed/issues/4000",),
    ),
    Signature(
        name="segmentation-fault",
        phrases=("return code = -11", "exitcode: -11", "exitcode  : -11", "Signal 11 (SIGSEGV)"),
        pattern=r"(?:local_rank: (?P<rank>\d+) \(pid)|-11|SIGSEGV",
        role=Role.KILLED,
        cause="a rank ended with a segmentation fault in native code",
        remedy="Run with PYTHONFAULTHANDLER=1 to print the Python stack; rebuild or reinstall the "
        "extension that it names for the installed torch and CUDA.",
        threads=("deepspeedai/DeepSpeed/issues/4000",),
    ),
    Signature(
        name="host-out-of-memory",
        phrases=("DefaultCPUAllocator: can't allocate memory", "Cannot allocate memory"),
        pattern="DefaultCPUAllocator|Errno 12|os error 12",
        cause="host memory is exhausted",
        remedy="Offload less, load with fewer ranks per node, or use a node with more memory: "
        "`dsconfig estimate --host-memory` computes the requirement.",
        threads=("deepspeedai/DeepSpeed/issues/3860",),
    ),
    Signature(
        name="too-many-open-files",
        phrases=("Too many open files", "received 0 items of ancdata"),
        cause="the limit of open files is reached: data loader workers pass tensors through file "
        "descriptors",
        remedy="Run ulimit -n 65536 before the launcher (on every node), or call "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
        threads=(
            "EleutherAI/gpt-neox/issues/1252",
            "kuleshov-group/caduceus/issues/58",
            "facebookresearch/maskrcnn-benchmark/issues/158",
        ),
    ),
)
