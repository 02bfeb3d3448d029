"""Blocks of a ds_config, loaded when a config contains them."""
