"""The engine's own code on fake tensors and a fake process group."""
