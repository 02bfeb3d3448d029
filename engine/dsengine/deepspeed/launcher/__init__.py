"""DeepSpeed's launcher for the ranks of one host, and constants that other programs read."""
