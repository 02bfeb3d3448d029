"""Dry runs: the engine on fake tensors and a fake process group."""
