"""Collectives that wait in vain, networks and ports."""

from dsconfig.failures.signature import Role, Signature

_COMPARE = (
    "Find out which rank waits for which collective: set TORCH_FR_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, or run `py-spy dump --pid PID` for each rank, and pass the "
    "files to `dsconfig doctor --log`."
)
_NCCL = ("Watchdog caught collective operation timeout: ",)

SIGNATURES = (
    Signature(
        name="moe-hang-stage3",
        phrases=_NCCL,
        clues=("stage 3", "MoE"),
        role=Role.TIMEOUT,
        releases={"deepspeed": ""},
        cause="MoE model at stage 3: ranks route tokens to different experts, so they gather "
        "different parameters and wait for each other forever",
        remedy="Gather each MoE block as a unit: deepspeed.utils.set_z3_leaf_modules(model, "
        "[MoeBlock]) before deepspeed.initialize, or use stage 2.",
        remedies={
            "transformers": "Gather each MoE block as a unit: in the script, call "
            "deepspeed.utils.set_z3_leaf_modules(model, [MoeBlock]) before creating the Trainer, "
            "or use stage 2.",
            "accelerate": "Set deepspeed_moe_layer_cls_names in the accelerate config to the class "
            "of the MoE block, or use stage 2.",
            "dsengine": "Use stage 2, or make every rank run every expert.",
        },
        threads=(
            "deepspeedai/DeepSpeed/issues/7461",
            "deepspeedai/DeepSpeed/issues/5066",
            "hiyouga/LlamaFactory/pull/2283",
            "huggingface/accelerate/issues/2256",
        ),
    ),
    Signature(
        name="mixed-modality-hang-stage3",
        phrases=_NCCL,
        pattern="ALLGATHER",
        clues=("stage 3", "several modalities"),
        role=Role.TIMEOUT,
        releases={"deepspeed": ""},
        cause="multimodal model at stage 3: a rank whose batch has no image (or audio) skips the "
        "encoder, so it does not gather the encoder's parameters while the others wait",
        remedy="Run the encoder on every rank, with a dummy input if the batch has none, or use "
        "stage 2.",
        threads=(
            "deepspeedai/DeepSpeed/issues/7170",
            "2U1/Phi3-Vision-Finetune/issues/41",
        ),
    ),
    Signature(
        name="collective-mismatch",
        phrases=("Detected mismatch between collectives on ranks",),
        pattern=r"mismatch between collectives on ranks(?:\. Rank (?P<rank>\d+))?",
        releases={"torch": ""},
        cause="ranks call different collectives: their code paths differ",
        remedy="Make all ranks run the same modules and the same number of steps. The message "
        "names both collectives. Data that selects modules (MoE, missing images) requires leaf "
        "modules or stage 2.",
        threads=(
            "deepspeedai/DeepSpeed/issues/7568",
            "huggingface/transformers/issues/30277",
            "pytorch/pytorch/issues/78022",
        ),
    ),
    Signature(
        name="nccl-timeout",
        phrases=_NCCL,
        role=Role.TIMEOUT,
        releases={"torch": ""},
        cause="a collective was not joined by all ranks before the timeout: another rank stopped, "
        "runs other code, or works longer than the timeout (tokenizing, saving, evaluating)",
        remedy=_COMPARE + " If one rank only works longer, raise the timeout: "
        "deepspeed.init_distributed(timeout=timedelta(hours=2)).",
        remedies={
            "transformers": _COMPARE + " If one rank only works longer, set ddp_timeout=7200 in "
            "TrainingArguments.",
            "accelerate": _COMPARE + " If one rank only works longer, pass "
            "InitProcessGroupKwargs(timeout=timedelta(hours=2)) to Accelerator.",
        },
        threads=(
            "hiyouga/LlamaFactory/issues/7396",
            "hiyouga/LlamaFactory/issues/6269",
            "pytorch/pytorch/issues/118369",
        ),
    ),
    Signature(
        name="gloo-timeout",
        phrases=("operation to complete", "Application timeout caused pair closure"),
        pattern=r"Timed out waiting \d+ms for \w+ operation|Application timeout caused",
        role=Role.TIMEOUT,
        releases={"torch": ""},
        cause="a gloo collective was not joined by all ranks before the timeout",
        remedy=_COMPARE,
        threads=(
            "Intellindust-AI-Lab/DEIMv2/issues/65",
            "rwth-i6/returnn/issues/1484",
            "facebookresearch/detectron2/issues/3243",
        ),
    ),
    Signature(
        name="rendezvous-timeout",
        phrases=(
            "The client socket has timed out after",
            "DistStoreError: Timed out after",
            "DistStoreError: Socket Timeout",
            "RendezvousTimeoutError",
            "store based barrier on rank",
        ),
        role=Role.TIMEOUT,
        releases={"torch": ""},
        cause="the ranks did not all reach the rendezvous: a node is missing, or the address or "
        "port of rank 0 cannot be reached",
        remedy="Start all nodes with the same master address, port and number of nodes; check that "
        "the port of the first node can be reached from the others (nc -vz ADDRESS PORT).",
        threads=(
            "vllm-project/vllm/issues/19670",
            "FanqingM/MM-Eureka-V0/issues/16",
            "Lightning-AI/pytorch-lightning/issues/11760",
        ),
    ),
    Signature(
        name="port-in-use",
        phrases=("EADDRINUSE", "Address already in use", "address already in use"),
        pattern="EADDRINUSE|errno: 98|[Aa]ddress already in use",
        releases={"torch": ""},
        cause="the rendezvous port is used by another job, or by processes of a killed run",
        remedy="Pass another port: deepspeed --master_port 29501 or torchrun --master_port 29501; "
        "end leftover processes of the previous run.",
        remedies={
            "transformers": "Pass another port: torchrun --master_port 29501, or deepspeed "
            "--master_port 29501; end leftover processes of the previous run.",
            "accelerate": "Pass another port: accelerate launch --main_process_port 29501 (0 "
            "selects a free one); end leftover processes of the previous run.",
        },
        threads=(
            "vllm-project/vllm/issues/39015",
            "meta-pytorch/torchtune/issues/392",
            "huggingface/accelerate/issues/3795",
        ),
    ),
    Signature(
        name="port-not-permitted",
        phrases=("errno: 13 - Permission denied",),
        releases={"torch": ""},
        cause="the rendezvous port is below 1024 and reserved for root",
        remedy="Pass a port above 1024, for example --master_port 29501.",
        threads=("KimMeen/Time-LLM/issues/158",),
    ),
    Signature(
        name="duplicate-gpu",
        phrases=("Duplicate GPU detected",),
        pattern=r"Duplicate GPU detected ?: rank (?P<rank>\d+)",
        releases={"torch": ""},
        cause="two ranks use the same GPU",
        remedy="Start at most one process per GPU, and select it by rank before the first "
        "collective: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])). Check "
        "CUDA_VISIBLE_DEVICES.",
        threads=("verl-project/verl/issues/161", "NVIDIA/Megatron-LM/issues/661"),
    ),
    Signature(
        name="nccl-network",
        phrases=("ncclSystemError", "unhandled system error", "Connect to "),
        pattern=r"ncclSystemError|unhandled system error|"
        r"\A(?>.*?NCCL WARN )(?>.*?Connect to ).* failed",
        role=Role.TIMEOUT,
        releases={"torch": ""},
        cause="NCCL could not connect the ranks: wrong network interface, firewall, or a system "
        "call failed",
        remedy="Set NCCL_SOCKET_IFNAME to the interface that connects the nodes; test with "
        "NCCL_IB_DISABLE=1; in a container raise --shm-size. Run with NCCL_DEBUG=INFO and read the "
        "first NCCL WARN line.",
        threads=(
            "NVIDIA/nccl/issues/975",
            "NVIDIA/nccl/issues/1059",
            "pytorch/pytorch/issues/38702",
        ),
    ),
    Signature(
        name="nccl-aborted",
        phrases=(
            "Some NCCL operations have failed or timed out",
            "NCCL communicator was aborted",
            "taking the entire process down",
            "ncclRemoteError",
            "remote process exited or there was a network error",
            "Process group watchdog thread terminated with exception",
            "watchdog thread terminated",
            "detected by watchdog at work",
            "failure detected by watchdog",
        ),
        role=Role.CONSEQUENCE,
        releases={"torch": ""},
        cause="NCCL stopped this rank because a collective failed or another rank is gone",
        remedy="Find the first error: read the logs of all ranks.",
        threads=("hiyouga/LlamaFactory/issues/1845",),
    ),
    Signature(
        name="peer-closed-connection",
        phrases=(
            "Connection closed by peer",
            "Connection reset by peer",
            "Broken pipe",
            "recvValue failed",
            "sendBytes failed",
            "failed to recv, got 0 bytes",
        ),
        pattern=r"gloo|NCCL|TCPStore|recvValue|sendBytes|c10d|got 0 bytes",
        role=Role.CONSEQUENCE,
        releases={"torch": ""},
        cause="another rank closed its connection, usually because its process ended",
        remedy="Find the first error: read the logs of all ranks.",
        threads=("rwth-i6/returnn/issues/1484",),
    ),
)
