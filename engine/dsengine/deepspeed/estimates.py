"""DeepSpeed's optimizer classes of ZeRO, and its estimates of memory.

The estimates equal DeepSpeed's, and include model states only; ``dsconfig estimate`` includes
everything.
"""

from torch import nn

import dsconfig
from dsengine.deepspeed.optimizers import StageClass
from dsengine.parameters.model_tree import describe


class DeepSpeedZeroOptimizer(metaclass=StageClass):
    """The optimizer of an engine of stages 1 and 2 is an instance of this class."""

    stages = (1, 2)


def estimate_zero2_model_states_mem_needs(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """Return bytes of host memory per node, and of GPU memory, by DeepSpeed's formula."""
    states = dsconfig.zero2_model_states(
        total_params, num_gpus_per_node, num_nodes, cpu_offload, additional_buffer_factor
    )
    return states.cpu_bytes, states.gpu_bytes


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the estimates with and without offload, given a parameter count."""
    hardware = (num_gpus_per_node, num_nodes)
    print(dsconfig.zero2_table(total_params, *hardware, additional_buffer_factor), end="")


def estimate_zero2_model_states_mem_needs_all_live(
    model: nn.Module,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the estimates with and without offload for a model."""
    estimate_zero2_model_states_mem_needs_all_cold(
        describe(model).parameters, num_gpus_per_node, num_nodes, additional_buffer_factor
    )


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
