"""DeepSpeed's checkpoint directories: reading at stages 0 to 3, and writing."""
