"""What other programs read of DeepSpeed's launcher, and that launcher for the ranks of one host."""
