"""Conversion to and from other programs' configs.

fsdp2              a Python module for torch.distributed.fsdp.fully_shard
accelerate_fsdp2   accelerate's YAML for FSDP2
torchtitan         torchtitan's job config
from_accelerate    a ds_config from accelerate's YAML for FSDP
unconverted        the keys that a target cannot represent
"""
