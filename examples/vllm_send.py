"""Update vLLM 0.22 to 0.27 with the weights of a dsengine engine.

``trainer_send_weights`` consumes an iterator on the rank that sends. The other ranks iterate too,
because each gather needs all of them.
"""

from typing import Any

from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerSendWeightsArgs,
    NCCLWeightTransferEngine,
)


def update_info(engine: Any) -> dict[str, Any]:
    """Return what vLLM's ``update_weights`` needs on the receiving side."""
    metadata = engine.weight_metadata()
    return {
        "names": [each.name for each in metadata],
        "dtype_names": [str(each.dtype).removeprefix("torch.") for each in metadata],
        "shapes": [list(each.shape) for each in metadata],
        "packed": True,
    }


def send(engine: Any, group: Any) -> None:
    """Send the current weights; call it on every rank while vLLM receives.

    ``group``: of ``NCCLWeightTransferEngine.trainer_init`` on rank 0, None on other ranks.
    """
    weights = engine.iter_weights()
    if group is None:
        for _ in weights:
            pass
    else:
        arguments = NCCLTrainerSendWeightsArgs(group=group, packed=True)
        NCCLWeightTransferEngine.trainer_send_weights(weights, arguments)
