"""DeepSpeed's optimizer class for stages 1 and 2, and its memory estimates.

The estimates equal DeepSpeed's, and include model states only; ``dsconfig estimate`` includes
everything.
"""

from torch import nn

import dsconfig
from dsengine.deepspeed.runtime.base_optimizer import StageClass
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


__all__ = [
    "DeepSpeedZeroOptimizer",
    "estimate_zero2_model_states_mem_needs",
    "estimate_zero2_model_states_mem_needs_all_cold",
    "estimate_zero2_model_states_mem_needs_all_live",
]
