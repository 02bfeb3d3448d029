"""What launchers of other programs read; jobs start with torchrun, srun or ``dsconfig run``."""
