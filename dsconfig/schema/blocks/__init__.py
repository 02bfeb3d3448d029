"""The blocks of a ds_config, one file each; loaded when a file has the block."""
