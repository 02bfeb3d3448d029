"""Of DeepSpeed's checkpoint package, what scripts import."""
