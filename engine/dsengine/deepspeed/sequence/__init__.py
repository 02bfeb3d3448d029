"""Sequence parallelism for attention of a script, at DeepSpeed's path."""
