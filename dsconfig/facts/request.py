"""The facts that users state: each is declared once, as argument, flag and help.

``dsconfig.gather`` takes them as arguments, and each command with facts has them as flags.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

if TYPE_CHECKING:
    from dsconfig.facts.machine import DeviceFacts
    from dsconfig.facts.model import ModelTree


class Declaration(NamedTuple):
    """How a fact is stated on the command line."""

    help: str
    flags: tuple[str, ...] = ()
    """Flags that are not named like the argument."""
    placeholder: str | None = None
    kind: type = str
    """Type of the flag's value: str, int, float, bool, Path, or list for repeated texts."""
    completed_from: str = ""
    """Catalogue whose names the shell completes: models or devices."""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    label: str = ""
    """Label of the field on the page, if it is not the name of the argument."""


LOSSES = ("plain", "16bit", "fused", "fused-linear", "chunked")
"""The values of ``cost.loss.Loss``."""


@dataclass(kw_only=True, eq=False, repr=False)
class FactsRequest:
    """Facts as stated, before validation and lookup.

    The class is created each time the command line starts, so it has only the methods it needs.
    """

    gpus: Annotated[
        int | None,
        Declaration(
            "Total number of GPUs (ranks).",
            flags=("--gpus", "--world-size"),
            kind=int,
            label="GPUs",
        ),
    ] = None
    nodes: Annotated[
        int | None, Declaration("Number of nodes (default: 8 GPUs per node).", kind=int)
    ] = None
    device: Annotated[
        "str | DeviceFacts | None",
        Declaration(
            "GPU name (see `dsconfig devices`) or cpu.",
            placeholder="NAME",
            completed_from="devices",
            label="GPU",
        ),
    ] = None
    device_memory: Annotated[
        str | int | None,
        Declaration("Memory per GPU, e.g. 80GiB.", placeholder="SIZE", label="Memory per GPU"),
    ] = None
    model: Annotated[
        "str | Path | ModelTree | None",
        Declaration(
            "Model name (see `dsconfig models`), Hugging Face id or config.json.",
            placeholder="NAME",
            completed_from="models",
        ),
    ] = None
    params: Annotated[
        str | int | float | None,
        Declaration(
            "Number of parameters, e.g. 13e9, 13B or 700M.",
            placeholder="COUNT",
            label="Number of parameters",
        ),
    ] = None
    training_args: Annotated[
        str | Path | Mapping[str, Any] | None,
        Declaration(
            "TrainingArguments as JSON, YAML or a shell script.", placeholder="FILE", kind=Path
        ),
    ] = None
    accelerate_config: Annotated[
        str | Path | Mapping[str, Any] | None,
        Declaration("YAML file of accelerate config.", placeholder="FILE", kind=Path),
    ] = None
    micro_batch: Annotated[
        int | None, Declaration("Micro batch size per GPU, in samples.", kind=int)
    ] = None
    global_batch: Annotated[
        int | None, Declaration("Global batch size, in samples per step.", kind=int)
    ] = None
    accumulation: Annotated[
        int | None,
        Declaration("Gradient accumulation steps.", kind=int, label="Accumulation steps"),
    ] = None
    seq_len: Annotated[
        int | None, Declaration("Sequence length, in tokens.", kind=int, label="Sequence length")
    ] = None
    precision: Annotated[
        str | None,
        Declaration(
            "Training precision: fp32, fp16 or bf16.",
            placeholder="DTYPE",
            choices=("fp32", "fp16", "bf16"),
        ),
    ] = None
    master_weights: Annotated[
        str | None,
        Declaration(
            "Copy of bf16 weights for the optimizer: none, fp32 or bf16 (default: fp32, or as "
            "in FILE).",
            placeholder="DTYPE",
            choices=("none", "fp32", "bf16"),
        ),
    ] = None
    recompute: Annotated[
        str | None,
        Declaration(
            "Activation recomputation: none, selective or full.",
            placeholder="MODE",
            choices=("none", "selective", "full"),
            label="Recomputation",
        ),
    ] = None
    attention: Annotated[
        str | None,
        Declaration(
            "Attention kernel: flash or eager (default: of transformers).",
            placeholder="KERNEL",
            choices=("flash", "eager"),
        ),
    ] = None
    fused_kernels: Annotated[
        bool,
        Declaration(
            "Use fused norm, MLP and loss (Liger).", kind=bool, label="Fused kernels (Liger)"
        ),
    ] = False
    loss: Annotated[
        str | None,
        Declaration(
            "Loss kernel: plain, 16bit, fused, chunked or fused-linear.",
            placeholder="KERNEL",
            choices=LOSSES,
        ),
    ] = None
    learning_rate: Annotated[float | None, Declaration("Peak learning rate.", kind=float)] = None
    total_steps: Annotated[int | None, Declaration("Total optimizer steps.", kind=int)] = None
    warmup_steps: Annotated[
        float | None, Declaration("Warmup steps, or a fraction of the total below 1.", kind=float)
    ] = None
    host_memory: Annotated[
        str | int | None,
        Declaration(
            "Host memory (RAM) per node, e.g. 512GiB.",
            placeholder="SIZE",
            label="Host memory per node",
        ),
    ] = None
    nvme: Annotated[
        str | None, Declaration("NVMe directory for offloading.", placeholder="DIR")
    ] = None
    nvme_size: Annotated[
        str | int | None, Declaration("Free NVMe space per node, e.g. 2TB.", placeholder="SIZE")
    ] = None
    trainable: Annotated[
        str | int | None,
        Declaration("Trainable parameters; the others are frozen, e.g. 20M.", placeholder="COUNT"),
    ] = None
    lora_rank: Annotated[
        int | None,
        Declaration("LoRA rank; freezes the base model.", kind=int, least=1, label="LoRA rank"),
    ] = None
    lora_targets: Annotated[
        str | None,
        Declaration(
            "Modules to adapt (default: all linear layers).",
            placeholder="NAMES",
            label="LoRA targets",
        ),
    ] = None
    lora_dropout: Annotated[
        float, Declaration("LoRA dropout.", kind=float, least=0.0, most=1.0)
    ] = 0.0
    base_weights: Annotated[
        str | None,
        Declaration("Quantize the frozen linear layers (QLoRA: 4bit).", placeholder="4bit|8bit"),
    ] = None
    frozen_copies: Annotated[
        int | None,
        Declaration(
            "Frozen copies of the model beside it, e.g. 1 for a reference model.", kind=int, least=0
        ),
    ] = None
    sequences_per_sample: Annotated[
        int | None,
        Declaration(
            "Sequences of one sample in a forward pass: 2 for pairs (DPO, reward models).",
            kind=int,
            least=1,
        ),
    ] = None
    inference_share: Annotated[
        float | None,
        Declaration(
            "Share of GPU memory of an inference engine on the same GPUs (vLLM).",
            kind=float,
            least=0.0,
            most=0.99,
        ),
    ] = None
    client_optimizer: Annotated[
        str | None,
        Declaration(
            "Optimizer passed by the script, e.g. AdamW.",
            placeholder="CLASS",
            label="Optimizer of the script",
        ),
    ] = None
    client_scheduler: Annotated[
        str | None,
        Declaration(
            "Learning-rate scheduler passed by the script, e.g. LambdaLR.", placeholder="CLASS"
        ),
    ] = None
    tensor_parallel: Annotated[
        int | None, Declaration("Tensor-parallel degree (default: 1, or searched).", kind=int)
    ] = None
    sequence_parallel: Annotated[
        int | None, Declaration("Sequence-parallel degree (default: 1, or searched).", kind=int)
    ] = None
    pipeline_parallel: Annotated[
        int | None, Declaration("Pipeline-parallel degree (default: 1, or searched).", kind=int)
    ] = None
    expert_parallel: Annotated[
        int | None, Declaration("Expert-parallel degree (default: 1, or searched).", kind=int)
    ] = None
    node_link: Annotated[
        str | float | None,
        Declaration(
            "Bandwidth between nodes per GPU, in GB/s, or e.g. 200Gbit.", placeholder="RATE"
        ),
    ] = None
    releases: Annotated[
        Mapping[str, str] | Iterable[str] | None,
        Declaration(
            "Release of transformers, accelerate, trl, torch or cuda in use (repeatable).",
            flags=("--with",),
            placeholder="NAME==X.Y",
            kind=list,
        ),
    ] = None

    @property
    def stated(self) -> dict[str, Any]:
        """The facts that differ from the defaults, by argument."""
        return {
            name: value
            for name, default in DEFAULTS.items()
            if type(value := getattr(self, name)) is not type(default) or value != default
        }


DECLARED: Mapping[str, Declaration] = {
    name: annotated.__metadata__[0] for name, annotated in FactsRequest.__annotations__.items()
}
DEFAULTS: Mapping[str, Any] = {name: getattr(FactsRequest, name) for name in DECLARED}
"""Arguments of ``dsconfig.gather`` with their defaults."""


def flag_of(argument: str) -> str:
    """Return the command-line flag of a fact, or of another argument of the library."""
    declared = DECLARED.get(argument)
    if declared and declared.flags:
        return declared.flags[0]
    return _OTHERS.get(argument) or f"--{argument.replace('_', '-')}"


_OTHERS = {"version": "--deepspeed-version"}
"""Flags of arguments of the library that are no facts, if they are not named like the argument."""
