"""DeepSpeed's own estimators, equal to the byte, and the tables they print, character by character.

They leave out everything but model states, and disagree with their own documentation in places (see
docs/memory.md); they are here to reproduce old numbers. Argument names are DeepSpeed's.
"""

from dataclasses import dataclass
from typing import Any

from dsconfig.report.sizes import GIB

_BUFFER_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of host memory (per node, at stage 3) and of one GPU."""

    cpu_bytes: int
    gpu_bytes: int
    largest_layer_bytes: int | None = None


def zero2_model_states(
    total_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = _BUFFER_FACTOR,
) -> States:
    """``estimate_zero2_model_states_mem_needs``; parameters are elements."""
    gpus = num_nodes * num_gpus_per_node
    weights = 2 * total_params
    if cpu_offload:
        host = total_params * max(4 * gpus, 16) * additional_buffer_factor
        return States(int(host), int(weights))
    host = total_params * 4 * num_gpus_per_node * additional_buffer_factor
    return States(int(host), int(weights + int(18 * total_params / gpus)))


def zero3_model_states(
    total_params: float,
    largest_layer_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = _BUFFER_FACTOR,
) -> States:
    """``estimate_zero3_model_states_mem_needs``; parameters are elements.

    ``cpu_offload_params`` without ``cpu_offload`` changes nothing.
    """
    gpus = num_nodes * num_gpus_per_node
    share_of_node = 1 / num_nodes
    layer = 4 * largest_layer_params
    if not cpu_offload:
        built = largest_layer_params if zero_init else total_params
        host = built * 4 * num_gpus_per_node * additional_buffer_factor
        return States(int(host), int(layer + int(18 * total_params / gpus)), int(layer))
    per_element = 18 if cpu_offload_params else 16
    resident = 0 if cpu_offload_params else int(2 * total_params / gpus)
    if zero_init:
        host = total_params * per_element * share_of_node * additional_buffer_factor
    else:
        largest = max(4 * num_gpus_per_node, per_element * share_of_node)
        host = total_params * largest * additional_buffer_factor
    return States(int(host), int(layer + resident), int(layer))


def zero2_table(
    total_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = _BUFFER_FACTOR,
) -> str:
    """Return the output of ``estimate_zero2_model_states_mem_needs_all_cold``."""
    lines = [_heading(num_gpus_per_node, num_nodes), f"{_software(total_params)}."]
    lines.append(_COLUMNS)
    for chosen in _CHOICES_OF_2:
        states = zero2_model_states(
            total_params, num_gpus_per_node, num_nodes, *chosen, additional_buffer_factor
        )
        lines.append(_row(states, f"offload_optimizer={_device(*chosen)}"))
    return "\n".join(lines) + "\n"


def zero3_table(
    total_params: float,
    largest_layer_params: float,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = _BUFFER_FACTOR,
) -> str:
    """Return the output of ``estimate_zero3_model_states_mem_needs_all_cold``."""
    layer = f"{int(largest_layer_params / 1e6)}M largest layer params."
    lines = [_heading(num_gpus_per_node, num_nodes), f"{_software(total_params)}, {layer}"]
    lines.append(_COLUMNS)
    model = total_params, largest_layer_params
    for chosen in _CHOICES_OF_3:
        states = zero3_model_states(
            *model, num_gpus_per_node, num_nodes, *chosen, additional_buffer_factor
        )
        optimizer, params, zero_init = chosen
        options = (
            f"offload_param={_device(params)}, offload_optimizer={_device(optimizer)}, "
            f"zero_init={int(zero_init)}"
        )
        lines.append(_row(states, options))
    return "\n".join(lines) + "\n"


_CHOICES_OF_2 = ((True,), (False,))
_CHOICES_OF_3 = tuple(
    (*offloaded, zero_init)
    for offloaded in ((True, True), (True, False), (False, False))
    for zero_init in (True, False)
)
"""Rows of the tables: (offloaded optimizer, offloaded parameters, zero.Init), in order."""


def as_data(
    total_params: float, largest_layer_params: float, num_gpus_per_node: int, num_nodes: int
) -> dict[str, Any]:
    """Return both tables as ``{"format_version", "options"}``, sizes in bytes, in printed order."""
    hardware = (num_gpus_per_node, num_nodes)
    names = ("offload_optimizer", "offload_param", "zero_init")
    priced = [
        *((2, each, zero2_model_states(total_params, *hardware, *each)) for each in _CHOICES_OF_2),
        *(
            (3, each, zero3_model_states(total_params, largest_layer_params, *hardware, *each))
            for each in _CHOICES_OF_3
        ),
    ]
    options = [
        {
            "stage": stage,
            **dict(zip(names, chosen, strict=False)),
            "cpu_bytes": states.cpu_bytes,
            "gpu_bytes": states.gpu_bytes,
        }
        for stage, chosen, states in priced
    ]
    return {"format_version": "1.0", "options": options}


def paper_states(params: float, gpus: int, stage: int) -> float:
    """Return the bytes of model states on one device after the ZeRO paper (arXiv:1910.02054, table
    1).

    2 for weights, 2 for gradients, 12 for Adam and the fp32 copy, each divided from its stage on.
    No engine allocates exactly this: buffers, padding and activations are missing.
    """
    weights, gradients, states = 2 * params, 2 * params, 12 * params
    if stage >= 1:
        states /= gpus
    if stage >= 2:
        gradients /= gpus
    if stage >= 3:
        weights /= gpus
    return weights + gradients + states


_COLUMNS = "  per CPU  |  per GPU |   Options"


def _heading(gpus: int, nodes: int) -> str:
    node, gpu = "nodes" if nodes > 1 else "node", "GPUs" if gpus > 1 else "GPU"
    return (
        "Estimated memory needed for params, optim states and gradients for a:\n"
        f"HW: Setup with {nodes} {node}, {gpus} {gpu} per node."
    )


def _software(total_params: float) -> str:
    return f"SW: Model with {int(total_params / 1e6)}M total params"


def _device(offloaded: bool) -> str:
    return "OffloadDeviceEnum.cpu" if offloaded else "none"


def _row(states: States, options: str) -> str:
    """Format one row. Sizes are GiB, labelled as DeepSpeed labels them."""
    host, device = states.cpu_bytes / GIB, states.gpu_bytes / GIB
    return f" {host:7.2f}GB | {device:6.2f}GB | {options}"
