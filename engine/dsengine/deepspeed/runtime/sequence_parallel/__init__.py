"""Sequence parallelism, which is not supported: a size of 1 changes nothing."""
