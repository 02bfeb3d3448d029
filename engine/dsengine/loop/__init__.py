"""The training loop: ``initialize``, the engine and its queries."""
