"""The training loop: from ``initialize`` to the end of a step, and what an engine can be asked."""
