"""What the other programs do with a config: their fills and their ways to stop, replayed."""
