"""Full weights from a checkpoint directory, in a given dtype.

python -m dsengine.utils.zero_to_torch checkpoints/ weights/ --dtype bfloat16
"""

from dsengine.deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_state_dict, main

__all__ = ["convert_zero_checkpoint_to_state_dict", "main"]

if __name__ == "__main__":
    main()
