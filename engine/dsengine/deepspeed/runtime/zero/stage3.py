"""DeepSpeed's optimizer class for stage 3, and its memory estimates.

The estimates equal DeepSpeed's, and include model states only; ``dsconfig estimate`` includes
everything.
"""

from torch import nn

import dsconfig
from dsengine.deepspeed.runtime.base_optimizer import StageClass
from dsengine.parameters.model_tree import describe


class DeepSpeedZeroOptimizer_Stage3(metaclass=StageClass):
    """The optimizer of an engine of stage 3 is an instance of this class."""

    stages = (3,)


def estimate_zero3_model_states_mem_needs(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int, int]:
    """Return bytes of host memory per node, of GPU memory, and of the largest layer on the GPU."""
    states = dsconfig.zero3_model_states(
        total_params,
        largest_layer_params,
        num_gpus_per_node,
        num_nodes,
        cpu_offload,
        cpu_offload_params,
        zero_init,
        additional_buffer_factor,
    )
    return states.cpu_bytes, states.gpu_bytes, states.largest_layer_bytes or 0


def estimate_zero3_model_states_mem_needs_all_cold(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the estimates of all offload options, given parameter counts."""
    model, hardware = (total_params, largest_layer_params), (num_gpus_per_node, num_nodes)
    print(dsconfig.zero3_table(*model, *hardware, additional_buffer_factor), end="")


def estimate_zero3_model_states_mem_needs_all_live(
    model: nn.Module,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the estimates of all offload options for a model."""
    tree = describe(model)
    hardware = (num_gpus_per_node, num_nodes)
    estimate_zero3_model_states_mem_needs_all_cold(
        tree.parameters, tree.largest_module or 0, *hardware, additional_buffer_factor
    )


__all__ = [
    "DeepSpeedZeroOptimizer_Stage3",
    "estimate_zero3_model_states_mem_needs",
    "estimate_zero3_model_states_mem_needs_all_cold",
    "estimate_zero3_model_states_mem_needs_all_live",
]
