"""What the engine steps at stage 3, by DeepSpeed's class, and its estimates of their memory.

The estimates are DeepSpeed's own, to the byte, which leave out everything but model states;
``dsconfig estimate`` counts all.
"""

from torch import nn

import dsconfig
from dsengine.deepspeed.runtime.base_optimizer import OfStages
from dsengine.parameters.model_tree import describe


class DeepSpeedZeroOptimizer_Stage3(metaclass=OfStages):
    """An optimizer that an engine of stage 3 steps is an instance of this."""

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
    """Return bytes of main memory of a node, of a GPU, and of the largest layer on it, by
    DeepSpeed's formula."""
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
    """Print them for every offload, for so many elements in all and in the largest layer."""
    model, hardware = (total_params, largest_layer_params), (num_gpus_per_node, num_nodes)
    print(dsconfig.zero3_table(*model, *hardware, additional_buffer_factor), end="")


def estimate_zero3_model_states_mem_needs_all_live(
    model: nn.Module,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print them for every offload, for a model, whose largest layer is the largest module."""
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
